"""The upper layers: the locked dependencies, and hamipy itself, as the virtual environment /opt/hamipy."""

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

from tools.image.base import PYTHON, BaseImage
from tools.image.oci import Layer, digest_of, write_layer

REPOSITORY = Path(__file__).resolve().parents[2]
LOCK = Path(__file__).with_name("requirements.lock")
HOME = Path("opt/hamipy")
SITE = HOME / "lib" / PYTHON / "site-packages"
_GLIBC = (36, 34, 31, 28, 27, 26, 24, 17, 12, 5)
_DROPPED = (
    "**/tests",
    "**/*.pyi",
    "**/*.pyx",
    "**/*.pxd",
    "numpy/**/include",
    "numpy/**/_examples",
    "numpy/f2py",
    "numpy/distutils",
    "bin",
)


def wheel_tags(machine: str) -> list[str]:
    """pip's flags for wheels that run in the image, whatever Python runs pip."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC] + [f"manylinux2014_{machine}"]
    flags = [f"--platform={p}" for p in platforms]
    return [*flags, "--python-version=3.11", "--implementation=cp", "--only-binary=:all:"]


def dependencies_layer(cache: Path, base: BaseImage) -> Layer:
    """What the lock file names, from the package index, held to its hashes."""
    recipe = base.key + platform.machine() + LOCK.read_text() + Path(__file__).read_text()
    tar = cache / f"dependencies-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.tar"
    created_by = "pip install --require-hashes -r tools/image/requirements.lock"
    if tar.exists():
        return Layer(tar, digest_of(tar), created_by)
    with tempfile.TemporaryDirectory(dir=cache, prefix="dependencies-work-") as work:
        tree = Path(work)
        site = tree / SITE
        _pip(
            "install",
            "--target",
            str(site),
            "--no-compile",
            "--no-deps",
            "--require-hashes",
            "-r",
            str(LOCK),
            *wheel_tags(platform.machine()),
        )
        for pattern in _DROPPED:
            for path in [*site.glob(pattern)]:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        (tree / HOME / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        (tree / HOME / "bin").mkdir()
        (tree / HOME / "bin" / "python").symlink_to(f"/usr/bin/{PYTHON}")
        base.compile(tree, site)
        return write_layer(tree, tar, created_by)


def application_layer(cache: Path, base: BaseImage, work: Path) -> Layer:
    """hamipy as its wheel has it, so that vendors are found by their entry points."""
    wheel = _wheel(cache, work)
    tree = work / "application"
    site = tree / SITE
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    (tree / HOME / "bin").mkdir()
    for name, target in scripts.items():
        module, _, function = target.partition(":")
        script = tree / HOME / "bin" / name
        script.write_text(f"#!/{HOME}/bin/python\nfrom {module} import {function}\n\n{function}()\n")
        script.chmod(0o755)
    base.compile(tree, site)
    return write_layer(tree, work / "application.tar", f"pip install {wheel.name}")


def _wheel(cache: Path, work: Path) -> Path:
    """Build the wheel with hatchling from a kept directory: pip's build isolation would fetch it every time."""
    builder = cache / "hatchling"
    if not builder.exists():
        partial = Path(tempfile.mkdtemp(dir=cache, prefix="hatchling-work-"))
        requires = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
        _pip("install", "--target", str(partial), *requires)
        partial.replace(builder)
    code = "import hatchling.build, sys; sys.stdout.write(hatchling.build.build_wheel(sys.argv[1]))"
    environment = {"PYTHONPATH": str(builder), "SOURCE_DATE_EPOCH": "315532800", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(work)],
        cwd=REPOSITORY,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"tools.image: building the wheel failed: {done.stderr}")
    return work / done.stdout.strip().splitlines()[-1]


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", *arguments]
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
        raise SystemExit(f"tools.image: pip {arguments[0]} failed")
