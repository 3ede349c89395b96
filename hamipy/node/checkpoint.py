"""The kubelet's device checkpoint: which container of which pod holds which ids, and under which CDI name.

Source: k8s.io/kubernetes, pkg/kubelet/cm/devicemanager/checkpoint (`kubelet_internal_checkpoint`). The file is
replaced atomically after each Allocate and lists init containers too. Its format is internal to the kubelet, so it is
read tolerantly: unknown fields are ignored and both known shapes of DeviceIDs are read.
"""

import base64
import binascii
import os
from collections import defaultdict
from functools import cached_property
from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError
from msgspec import Struct

from hamipy.core.errors import HamipyError
from hamipy.core.names import CDI_KIND, KUBELET_RESOURCE
from hamipy.node._generated import deviceplugin_v1beta1_pb2 as pb

FILE = "kubelet_internal_checkpoint"


class CheckpointUnreadable(HamipyError):
    """The checkpoint is there but cannot be read or understood."""


class Holding(Struct, frozen=True, gc=False):
    """One container with the ids of ours it holds; `name` is the CDI name that Allocate answered, or empty."""

    uid: str
    container: str
    ids: frozenset[str]
    name: str


class Holdings:
    """What one state of the checkpoint says."""

    def __init__(self, entries: tuple[Holding, ...]) -> None:
        self.entries = entries

    @cached_property
    def ids(self) -> dict[str, str]:
        """Every id that is held -> uid of a pod that holds it."""
        return {i: entry.uid for entry in self.entries for i in entry.ids}

    @cached_property
    def names(self) -> frozenset[str]:
        """The CDI names in use."""
        return frozenset(entry.name for entry in self.entries if entry.name)

    @cached_property
    def by_pod(self) -> dict[str, dict[str, Holding]]:
        """Pod uid -> container -> what it holds."""
        pods: dict[str, dict[str, Holding]] = defaultdict(dict)
        for entry in self.entries:
            pods[entry.uid][entry.container] = entry
        return dict(pods)

    @cached_property
    def _by_ids(self) -> dict[frozenset[str], tuple[Holding, ...]]:
        found: dict[frozenset[str], tuple[Holding, ...]] = {}
        for entry in self.entries:
            found[entry.ids] = (*found.get(entry.ids, ()), entry)
        return found

    def holding(self, ids: frozenset[str]) -> tuple[Holding, ...]:
        """The containers that hold exactly these ids: several when an init container's ids went on to another."""
        return self._by_ids.get(ids, ())


NOTHING = Holdings(())


class _Entry(Struct, frozen=True, gc=False):
    pod_uid: str = msgspec.field(name="PodUID", default="")
    container: str = msgspec.field(name="ContainerName", default="")
    resource: str = msgspec.field(name="ResourceName", default="")
    ids: dict[str, list[str] | None] | list[str] | None = msgspec.field(name="DeviceIDs", default=None)
    answer: str | None = msgspec.field(name="AllocResp", default=None)


class _Data(Struct, frozen=True, gc=False):
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries", default=None)


class _File(Struct, frozen=True, gc=False):
    data: _Data = msgspec.field(name="Data")


_decoder = msgspec.json.Decoder(_File)


def parse(content: bytes) -> Holdings:
    """Holdings of our resource.

    Raises:
        CheckpointUnreadable: not the format that any known kubelet writes.
    """
    try:
        entries = _decoder.decode(content).data.entries or []
        return Holdings(tuple(_holding(e) for e in entries if e.resource == KUBELET_RESOURCE))
    except (msgspec.MsgspecError, DecodeError, binascii.Error, UnicodeDecodeError) as error:
        raise CheckpointUnreadable(f"the kubelet's device checkpoint is not in a known format: {error}") from error


def _holding(entry: _Entry) -> Holding:
    parts = entry.ids.values() if isinstance(entry.ids, dict) else [entry.ids]
    answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry.answer or "", validate=True))
    kind, _, name = answer.cdi_devices[0].name.partition("=") if answer.cdi_devices else ("", "", "")
    ids = frozenset(i for part in parts for i in part or ())
    return Holding(entry.pod_uid, entry.container, ids, name if kind == CDI_KIND else "")


class Checkpoint:
    """The file, parsed once for each time it is replaced."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._stamp: tuple[int, int, int] | None = None
        self._holdings = NOTHING

    def read(self) -> Holdings:
        """What it says now; nothing when there is no file.

        Raises:
            CheckpointUnreadable: it cannot be read or understood.
        """
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
                if stamp != self._stamp:
                    self._holdings = parse(file.read())
                    self._stamp = stamp
        except FileNotFoundError:
            self._stamp, self._holdings = None, NOTHING
        except OSError as error:
            raise CheckpointUnreadable(f"the kubelet's device checkpoint cannot be read: {error.strerror}") from error
        return self._holdings
