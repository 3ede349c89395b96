"""The lowest layer: Debian's Python with what it needs and a busybox shell, nothing else."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tools.image.oci import Layer, digest_of, write_layer

SUITE = "bookworm"
PYTHON = "python3.11"
PACKAGES = (PYTHON, "libstdc++6", "busybox-static")
_DROPPED = (
    "dev",
    "run",
    "media",
    "mnt",
    "srv",
    "home",
    "var/cache",
    "var/log",
    "var/lib/apt",
    "var/lib/dpkg",
    "var/backups",
    "etc/apt",
    "etc/cron.daily",
    "etc/dpkg",
    "etc/logrotate.d",
    "etc/fstab",
    "etc/hostname",
    "etc/resolv.conf",
    "bin/tar",
    "sbin",
    "usr/sbin",
    "lib/systemd",
    "usr/lib/systemd",
    "usr/lib/dpkg",
    "usr/lib/mime",
    "usr/bin/dpkg*",
    "usr/bin/pdb*",
    "usr/bin/pydoc*",
    "usr/bin/pygettext*",
    "usr/share/applications",
    "usr/share/bash-completion",
    "usr/share/binfmts",
    "usr/share/dpkg",
    "usr/share/doc",
    "usr/share/doc-base",
    "usr/share/gcc",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/menu",
    "usr/share/pixmaps",
    "usr/share/polkit-1",
    "usr/lib/*/gconv",
    "usr/lib/*/perl*",
    "usr/lib/*/libdb-*",
    "usr/lib/python3.11/test",
    "usr/lib/python3.11/pydoc_data",
    "usr/lib/python3.11/idlelib",
    "usr/lib/python3.11/turtle*",
    "usr/lib/python3.11/lib2to3",
    "usr/lib/python3.11/unittest/test",
    "usr/lib/python3.11/distutils",
    "usr/lib/python3.11/EXTERNALLY-MANAGED",
)
_ETC = {
    "passwd": "root:x:0:0:root:/:/bin/sh\nhamipy:x:65532:65532::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    "group": "root:x:0:\nhamipy:x:65532:\nnogroup:x:65534:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "os-release": 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="hamipy on Debian 12"\n',
}


class BaseImage:
    """The base layer and its unpacked tree, whose Python compiles what lies above it.

    Args:
        cache: directory that keeps it.
        refresh: make it anew even if it is there (for Debian's security updates).
    """

    def __init__(self, cache: Path, *, refresh: bool = False) -> None:
        mirror = os.environ.get("HAMIPY_IMAGE_MIRROR", "")
        recipe = repr((SUITE, PACKAGES, mirror, platform.machine())) + Path(__file__).read_text()
        key = hashlib.sha256(recipe.encode()).hexdigest()[:16]
        self.key = key
        self.root = cache / f"base-{key}"
        tar = cache / f"base-{key}.tar"
        created_by = f"mmdebstrap {SUITE}: {' '.join(PACKAGES)}"
        if refresh or not tar.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache, prefix="base-work-") as work:
                tree = Path(work, "root")
                _unpack(mirror, Path(work, "debian.tar"), tree)
                _tidy(tree)
                _compile(tree, tree, tree / "usr" / "lib" / PYTHON)
                shutil.rmtree(self.root, ignore_errors=True)
                tree.replace(self.root)
            self.layer = write_layer(self.root, tar, created_by)
        else:
            self.layer = Layer(tar, digest_of(tar), created_by)

    def compile(self, tree: Path, directory: Path) -> None:
        """Write the bytecode of `directory`, which lies in the layer tree `tree`."""
        _compile(self.root, tree, directory)


def _unpack(mirror: str, tar: Path, tree: Path) -> None:
    tool = _mmdebstrap()
    # extract: nothing is configured, so no maintainer script runs and no rights are needed
    command = [
        tool,
        "--quiet",
        "--variant=extract",
        f"--include={','.join(PACKAGES)}",
        SUITE,
        str(tar),
        *([mirror] if mirror else []),
    ]
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    if keyring.exists():
        command.insert(1, f"--keyring={keyring}")
    subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": "0"}, stdout=sys.stderr)
    with tarfile.open(tar) as archive:
        archive.extractall(tree, members=[m for m in archive if not m.isdev()], filter="tar")


def _mmdebstrap() -> str:
    found = shutil.which("mmdebstrap")
    if found:
        return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SystemExit(
            "tools.image: mmdebstrap is needed; install it (on Debian and Ubuntu: sudo apt-get install mmdebstrap)"
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment, stdout=sys.stderr)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "mmdebstrap", "debian-archive-keyring"],
        check=True,
        env=environment,
        stdout=sys.stderr,
    )
    return shutil.which("mmdebstrap") or "mmdebstrap"


def _tidy(tree: Path) -> None:
    for pattern in _DROPPED:
        for path in tree.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in ("dev", "proc", "sys", "run", "tmp", "etc"):
        (tree / name).mkdir(exist_ok=True)
    (tree / "tmp").chmod(0o1777)
    for name, text in _ETC.items():
        (tree / "etc" / name).write_text(text)
    busybox = tree / "bin" / "busybox"
    applets = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for applet in applets:
        if not (tree / "bin" / applet).exists():
            (tree / "bin" / applet).symlink_to("busybox")


def _compile(root: Path, tree: Path, directory: Path) -> None:
    """Compile by the image's own Python, found by its own loader, so that neither rights nor a Python of ours matter.

    Bytecode that is never checked against the source starts fastest and does not depend on times.
    """
    triplet = f"{platform.machine()}-linux-gnu"
    libraries = ":".join(str(root / d / triplet) for d in ("lib", "usr/lib"))
    loader = next(p for p in [*root.glob("lib64/ld-linux-*.so.2"), *root.glob("lib/ld-linux-*.so.1")] if p.exists())
    command = [loader, "--library-path", libraries, root / "usr" / "bin" / PYTHON, "-S", "-m", "compileall", "-q"]
    command += ["--invalidation-mode", "unchecked-hash", "-s", tree, "-p", "/", directory]
    environment = {
        "PYTHONHOME": str(root / "usr"),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"tools.image: compiling {directory.relative_to(tree)} failed: {done.stdout}{done.stderr}")
