"""What the machine itself must have: found, or installed with apt."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from .errors import HarnessError


def is_static(executable: Path) -> bool:
    """True for an ELF file without an interpreter: one that runs in an empty image."""
    header = executable.read_bytes()[:4096]
    return header[:4] == b"\x7fELF" and b"/ld-linux" not in header and b"/ld-musl" not in header


def static_busybox() -> Path | None:
    """A busybox that runs in an empty image, if the machine has one."""
    for directory in ("/usr/bin", "/bin", "/usr/local/bin"):
        candidate = Path(directory, "busybox")
        if candidate.is_file() and is_static(candidate):
            return candidate
    return None


def _has(*commands: str) -> Callable[[], bool]:
    return lambda: all(shutil.which(c, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") for c in commands)


RUN: dict[str, Callable[[], bool]] = {
    "busybox-static": lambda: static_busybox() is not None,
    "iproute2": _has("ip"),
    "util-linux": _has("unshare", "nsenter", "setsid"),
    "mount": _has("mount", "umount"),
}
BUILD: dict[str, Callable[[], bool]] = {
    "gcc": _has("gcc"),
    "libc6-dev": lambda: Path("/usr/include/stdio.h").exists(),
    "libseccomp-dev": lambda: Path("/usr/include/seccomp.h").exists(),
    "pkg-config": _has("pkg-config"),
}


def ensure(wanted: Iterable[tuple[str, Callable[[], bool]]]) -> None:
    """Install the Debian packages whose probe fails.

    Raises:
        HarnessError: apt is missing, we are not root, or the package does not give what the probe looks for.
    """
    missing = [(package, probe) for package, probe in wanted if not probe()]
    if not missing:
        return
    names = [package for package, _ in missing]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise HarnessError(f"needs {', '.join(names)}: install them (Debian names), or run as root where apt-get is")
    print(f"installing {' '.join(names)}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "-q", "update"], ["apt-get", "-qy", "install", "--no-install-recommends", *names]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise HarnessError(f"{' '.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}")
    still = [package for package, probe in missing if not probe()]
    if still:
        raise HarnessError(f"installed {', '.join(still)}, but what is needed from there is still missing")
