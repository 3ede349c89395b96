"""Files that are there whole or not at all, and the directory watch."""

import ctypes
import os
import secrets
import struct
from collections.abc import Callable
from pathlib import Path

TEMPORARY = ".tmp"
"""Suffix of files being written; what a crash left is removed by the cleaner. The runtime reads `.json` only."""

_IN_MOVED_TO, _IN_CREATE, _IN_DELETE, _IN_CLOEXEC, _IN_NONBLOCK = 0x80, 0x100, 0x200, 0x80000, 0x800
_EVENT = struct.Struct("iIII")


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `data`: temporary file, fsync, rename. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class DirectoryWatch:
    """Calls back with the name of each entry that appears in, moves into or leaves a directory (inotify(7)).

    A convenience: whoever uses it polls as well, for inotify instances can be used up and file systems differ.
    """

    def __init__(self, directory: Path, callback: Callable[[str], None]) -> None:
        self._callback = callback
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = libc.inotify_init1(_IN_CLOEXEC | _IN_NONBLOCK)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if libc.inotify_add_watch(self.descriptor, os.fsencode(directory), _IN_MOVED_TO | _IN_CREATE | _IN_DELETE) < 0:
            error = ctypes.get_errno()
            os.close(self.descriptor)
            raise OSError(error, "inotify_add_watch", str(directory))

    def read(self) -> None:
        """Deliver what has happened; to be called when the descriptor is readable."""
        try:
            data = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return
        position = 0
        while position < len(data):
            _, _, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size
            name = data[position : position + length].rstrip(b"\0")
            position += length
            self._callback(os.fsdecode(name))

    def close(self) -> None:
        """Stop."""
        os.close(self.descriptor)
