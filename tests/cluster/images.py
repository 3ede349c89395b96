"""Container images without a registry: OCI archives made in Python, imported with `ctr images import`."""

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import packages
from .binaries import Binaries, cache, locked
from .errors import HarnessError

BUSYBOX, PAUSE = "local/busybox:1", "local/pause:1"
_APPLETS = (
    "sh ls cat sleep env echo printf test mkdir touch rm cp mv ln head tail grep sed awk sort uniq wc id ps kill wget "
    "nc date stat df du mount umount dd find xargs true false hostname seq tr cut od top free"
)
_DIRECTORIES = ("bin", "tmp", "etc", "proc", "dev", "sys", "root", "run", "var")
_WAIT = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def _layer(files: Mapping[str, Path], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    folders = {*_DIRECTORIES, *(str(p) for f in files for p in Path(f).parents if str(p) != ".")}
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in sorted(folders):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        for name, source in files.items():
            _add(archive, name, source.read_bytes(), 0o755)
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()


def write_archive(
    out: Path, name: str, files: Mapping[str, Path], links: Mapping[str, str], entrypoint: Sequence[str], path: str
) -> None:
    """Write a one-layer OCI archive; equal input gives equal bytes.

    Args:
        out: the archive; appears whole or not at all.
        name: image name with tag, `local/busybox:1`; containerd files it under docker.io.
        files: path in the image → executable here.
        links: path in the image → target of the symbolic link.
        entrypoint: command of a container that names none.
        path: PATH in the image.
    """
    layer = _layer(files, links)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint), "Env": [f"PATH={path}"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    ).encode()

    def descriptor(media: str, data: bytes) -> dict[str, object]:
        return {"mediaType": f"application/vnd.oci.image.{media}", "digest": _digest(data), "size": len(data)}

    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("config.v1+json", config),
            "layers": [descriptor("layer.v1.tar", layer)],
        }
    ).encode()
    names = {"io.containerd.image.name": f"docker.io/{name}", "org.opencontainers.image.ref.name": name}
    index = {"schemaVersion": 2, "manifests": [descriptor("manifest.v1+json", manifest) | {"annotations": names}]}
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=out.parent, prefix=".image-", delete=False) as scratch:
        with tarfile.open(fileobj=scratch, mode="w") as archive:
            _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            _add(archive, "index.json", json.dumps(index).encode())
            for blob in (layer, config, manifest):
                _add(archive, f"blobs/sha256/{_digest(blob)[7:]}", blob)
        Path(scratch.name).rename(out)


def base_images(binaries: Binaries) -> list[Path]:
    """Archives that every node gets: `local/busybox:1`, `local/pause:1` and the stock kube-scheduler of this version.

    Raises:
        HarnessError: no static busybox on the machine.
    """
    busybox = packages.static_busybox()
    if busybox is None:
        raise HarnessError("needs a static busybox: install the Debian package busybox-static")
    home = cache() / "images"
    home.mkdir(parents=True, exist_ok=True)
    scheduler = Path(binaries["kube-scheduler"])
    tool, links = {"bin/busybox": busybox}, {f"bin/{a}": "busybox" for a in _APPLETS.split()}
    version = binaries.kubernetes_version
    stamp = hashlib.sha256(busybox.read_bytes() + repr((links, _WAIT)).encode()).hexdigest()[:12]
    wanted = [
        (f"busybox-{stamp}.tar", BUSYBOX, tool, links, ("/bin/sh",), "/bin"),
        (f"pause-{stamp}.tar", PAUSE, tool, links, ("/bin/sh", "-c", _WAIT), "/bin"),
        (
            f"kube-scheduler-{version}-{scheduler.parent.name[-12:]}.tar",
            scheduler_image(version),
            {"usr/local/bin/kube-scheduler": scheduler},
            {},
            ("kube-scheduler",),
            "/usr/local/bin",
        ),
    ]
    with locked(home / ".base.lock"):
        for file, *rest in wanted:
            if not (home / file).exists():
                write_archive(home / file, *rest)  # type: ignore[arg-type]
    return [home / file for file, *_ in wanted]


def scheduler_image(version: str) -> str:
    """Name of the stock kube-scheduler's image on our nodes."""
    return f"local/kube-scheduler:v{version}"
