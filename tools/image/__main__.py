"""`python -m tools.image`: write the image to a file."""

import argparse
import datetime
import os
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from tools.image.base import BaseImage
from tools.image.oci import write_archive
from tools.image.packages import HOME, REPOSITORY, application_layer, dependencies_layer

CONFIG = {
    "Entrypoint": [f"/{HOME}/bin/hamipy"],
    "Env": [f"PATH=/{HOME}/bin:/usr/local/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1"],
    "User": "65532:65532",
    "WorkingDir": "/",
}
"""How the image starts; the Containerfile says the same."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _cache() -> Path:
    return Path(os.environ.get("HAMIPY_CACHE") or Path.home() / ".cache" / "hamipy") / "image"


def build(output: Path, name: str, cache: Path, *, refresh: bool = False) -> str:
    """Write the archive and return the image's digest."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise SystemExit(f"tools.image: cannot build on {machine}: build on {' or '.join(_ARCHITECTURES)}")
    base = BaseImage(cache, refresh=refresh)
    dependencies = dependencies_layer(cache, base)
    created = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.UTC).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    labels = {"org.opencontainers.image.title": "hamipy", "org.opencontainers.image.licenses": project["license"]}
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="application-work-") as work:
        application = application_layer(cache, base, Path(work))
        layers = (base.layer, dependencies, application)
        return write_archive(output, name, layers, {**CONFIG, "Labels": labels}, _ARCHITECTURES[machine], created)


def main() -> None:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.image", description="Make hamipy's image as an OCI archive, without a container registry."
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=REPOSITORY / "dist" / "hamipy-image.tar",
        help="the archive [dist/hamipy-image.tar]",
    )
    parser.add_argument(
        "-n", "--name", default="local/hamipy:dev", help="repository:tag of the image [local/hamipy:dev]"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=_cache(),
        help="where layers are kept [~/.cache/hamipy/image]",
    )
    parser.add_argument("--refresh", action="store_true", help="fetch Debian's packages anew")
    arguments = parser.parse_args()
    began = time.monotonic()
    digest = build(arguments.output, arguments.name, arguments.cache, refresh=arguments.refresh)
    size = arguments.output.stat().st_size / 1e6
    sys.stdout.write(
        f"{arguments.output}: {arguments.name} {digest}, {size:.0f} MB in {time.monotonic() - began:.1f} s\n"
    )


if __name__ == "__main__":
    main()
