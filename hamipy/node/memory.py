"""Keeps the daemon small: it runs on every node, mostly idle, beside what people pay for.

glibc gives each of gRPC's threads a heap of its own and keeps what is freed below the top of a heap; one heap, trimmed
now and then, is some MB less. Other C libraries lack these functions, then nothing is done.
"""

import ctypes
import gc
from typing import Any

_M_ARENA_MAX = -8


def _libc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)


def one_heap() -> None:
    """Use one heap for all threads; to be called before threads start."""
    mallopt = _libc("mallopt")
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Give freed memory back to the system."""
    gc.collect()
    malloc_trim = _libc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)
