"""Errors of the core.

HamipyError
├── InvalidField       one bad value: names the field, the value and the fix
│   ├── InvalidRequest     in a pod
│   └── InvalidInventory   in what a node published or a vendor discovered
├── UnknownVersion     a codec met a version it does not read
└── VendorError        a vendor failed; the others go on

No fit is not an error but a value: `hamipy.core.model.Unfit`.
"""


class HamipyError(Exception):
    """Base of every error that hamipy raises on purpose; its text is one sentence for a person."""


def shown(value: object) -> str:
    """A value for a sentence: its repr, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


class InvalidField(HamipyError):
    """A value that cannot be accepted.

    Args:
        field: path of the field, as its author wrote it (`spec.containers[main].resources.limits[hamipy.io/cores]`).
        value: what stood there.
        fix: what would be right.
    """

    def __init__(self, field: str, value: object, fix: str) -> None:
        self.field, self.value, self.fix = field, value, fix
        super().__init__(f"{field}: {shown(value)}: {fix}")


class InvalidRequest(InvalidField):
    """A pod asks for something that no cluster could give."""


class InvalidInventory(InvalidField):
    """An inventory, a device or a profile that contradicts itself or the schema."""


class UnknownVersion(HamipyError):
    """Data written by a version that this build does not read; it is never guessed at."""

    def __init__(self, what: str, version: object, readable: tuple[object, ...]) -> None:
        self.what, self.version, self.readable = what, version, readable
        super().__init__(
            f"{what} has version {version!r}, this build reads {', '.join(map(repr, readable))}: upgrade the reader"
        )


class VendorError(HamipyError):
    """A vendor raised, hung or returned nonsense; carries its name."""

    def __init__(self, vendor: str, message: str) -> None:
        self.vendor = vendor
        super().__init__(f"vendor {vendor}: {message}")
