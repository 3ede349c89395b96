"""Kubernetes quantities: text to whole numbers and back.

Source of the format: `k8s.io/apimachinery/pkg/api/resource.Quantity` (decimal SI, binary SI and exponent suffixes).
"""

import re
from decimal import Context, Decimal

from hamipy.core.errors import shown

_SUFFIX: dict[str, Decimal | int] = {
    "": 1,
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)")
_EXACT = Context(prec=200)
"""Digits enough for any text that `parse` takes."""
_BINARY = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")
MAX = 2**63 - 1
"""The largest quantity Kubernetes carries as an integer."""


def parse(text: str | int) -> Decimal:
    """Exact value of a Kubernetes quantity.

    Raises:
        ValueError: not a quantity.
    """
    match = _QUANTITY.fullmatch(str(text).strip()) if len(str(text)) <= 64 else None
    if match is None:
        raise ValueError(f"{shown(text)} is not a Kubernetes quantity such as 3, 500m or 8Gi")
    number, exponent, suffix = match.groups()
    unit = Decimal(f"1{exponent}") if exponent else Decimal(_SUFFIX[suffix or ""])
    return _EXACT.multiply(Decimal(number), unit)


def parse_int(text: str | int) -> int:
    """Value of a quantity that must be a whole number of its unit (extended resources are).

    Raises:
        ValueError: not a quantity, fractional, or beyond 64 bits.
    """
    value = parse(text)
    if value != value.to_integral_value(context=_EXACT):
        raise ValueError(f"{text!r} is not a whole number")
    if abs(value) > MAX:
        raise ValueError(f"{text!r} is beyond 64 bits")
    return int(value)


def format_bytes(count: int) -> str:
    """Bytes as the shortest exact binary quantity: 8589934592 -> `8Gi`, 1000 -> `1000`."""
    if count:
        for suffix in _BINARY:
            unit = int(_SUFFIX[suffix])
            if count % unit == 0:
                return f"{count // unit}{suffix}"
    return str(count)


def format_size(count: int) -> str:
    """Bytes for a person, at most two decimals, never more than it is: 15032385536 -> `14Gi`, 1610612736 -> `1.5Gi`."""
    for suffix in _BINARY:
        unit = int(_SUFFIX[suffix])
        if count >= unit:
            whole, hundredths = divmod(count * 100 // unit, 100)
            return f"{whole}.{hundredths:02}".rstrip("0").rstrip(".") + suffix
    return str(count)
