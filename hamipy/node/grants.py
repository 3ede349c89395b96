"""What has been handed to containers, on disk: restarts need neither the API server nor a daemon that remembers.

One directory for each CDI name: `grant.json`, `limits.json` (mounted into the container) and a directory for each
vendor's own files. A grant of an earlier boot proves nothing any more and only says what to release.
"""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from hamipy.core.model import Allocation, ContainerKind, Device, Share
from hamipy.node.files import write_atomically
from hamipy.node.pods import PodRecord

logger = logging.getLogger(__name__)

_VERSION = 1
LIMITS = "limits.json"


class Grant(Struct, frozen=True, gc=False):
    """One container's shares, and the pod they came from.

    Attributes:
        name: CDI name.
        boot: id of the machine's boot in which it was granted.
        ids: what the kubelet gave.
        shares, devices: what the container gets, same order.
        kinds, containers: the whole pod, for its other containers while the API server is away.
    """

    name: str
    boot: str
    uid: str
    namespace: str
    pod: str
    node: str
    container: str
    ids: tuple[str, ...]
    shares: tuple[Share, ...]
    devices: tuple[Device, ...]
    kinds: dict[str, ContainerKind]
    containers: dict[str, tuple[Share, ...]]
    version: int = _VERSION

    def pod_record(self) -> PodRecord:
        """The pod as it was when this was granted; its allocation never changes."""
        wants = {c: len(shares) for c, shares in self.containers.items()}
        allocation = Allocation(self.containers)
        return PodRecord(self.uid, self.namespace, self.pod, self.node, "", self.kinds, wants, allocation)


class Grants:
    """All grants; reads them at start, keeps them in memory."""

    def __init__(self, state: Path, boot: str) -> None:
        self.directory, self._boot = state / "containers", boot
        self.directory.mkdir(parents=True, exist_ok=True)
        self._grants: dict[str, Grant] = {}
        decoder = msgspec.json.Decoder(Grant)
        for path in self.directory.glob("*/grant.json"):
            try:
                grant = decoder.decode(path.read_bytes())
            except (OSError, msgspec.MsgspecError) as error:
                logger.warning("%s is not readable and is left to the cleaner: %s", path, error)
                continue
            if grant.version == _VERSION and grant.name == path.parent.name:
                self._grants[grant.name] = grant
        self._complete = set(self._grants)

    def __iter__(self) -> Iterator[Grant]:
        """All of them, those of earlier boots too."""
        return iter(list(self._grants.values()))

    def get(self, name: str, uid: str, container: str) -> Grant | None:
        """The grant of this boot under this name, if it is this container's and its first start has been served."""
        grant = self._grants.get(name)
        if grant is None or (grant.boot, grant.uid, grant.container) != (self._boot, uid, container):
            return None
        return grant if name in self._complete else None

    def of_pod(self, uid: str) -> Grant | None:
        """Any grant of this boot to a container of this pod."""
        return next((g for g in self._grants.values() if g.uid == uid and g.boot == self._boot), None)

    def home(self, name: str) -> Path:
        """The directory of one name."""
        return self.directory / name

    def write(self, grant: Grant, limits: bytes) -> None:
        """Write grant and limits, where they differ from what is there; the grant first, for it says what to release.

        Raises OSError.
        """
        home = self.home(grant.name)
        home.mkdir(exist_ok=True)
        if self._grants.get(grant.name) != grant:
            write_atomically(home / "grant.json", msgspec.json.encode(grant))
            self._grants[grant.name] = grant
        if not (home / LIMITS).exists() or (home / LIMITS).read_bytes() != limits:
            write_atomically(home / LIMITS, limits)

    def complete(self, name: str) -> None:
        """All that the container needs has been written."""
        self._complete.add(name)

    def remove(self, name: str) -> None:
        """Remove a name with all its files; a crash in between leaves a directory that `strays` names."""
        home = self.home(name)
        (home / "grant.json").unlink(missing_ok=True)
        self._grants.pop(name, None)
        self._complete.discard(name)
        shutil.rmtree(home, ignore_errors=True)

    def strays(self) -> list[str]:
        """Directories without a readable grant: a crash left them."""
        return sorted(p.name for p in self.directory.iterdir() if p.name not in self._grants)
