"""Layers and archives by the OCI image specification, byte for byte the same for the same input."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Layer:
    """An uncompressed layer: its file, and the sha256 (hex) of it."""

    path: Path
    digest: str
    created_by: str


def write_layer(tree: Path, target: Path, created_by: str) -> Layer:
    """Pack `tree` as a layer: paths sorted, root owns all, times are zero; written whole or not at all."""
    partial = target.with_suffix(f".partial{os.getpid()}")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(tree.rglob("*")):
            info = tar.gettarinfo(path, arcname=str(path.relative_to(tree)))
            if info.islnk():  # a second name of one file: a copy is simpler, and there are hardly any
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            if info.isreg():
                with path.open("rb") as data:
                    tar.addfile(info, data)
            else:
                tar.addfile(info)
    partial.replace(target)
    return Layer(target, digest_of(target), created_by)


def digest_of(path: Path) -> str:
    """sha256 of a file, in hex."""
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def write_archive(
    target: Path, name: str, layers: Sequence[Layer], config: Mapping[str, Any], architecture: str, created: str
) -> str:
    """Write an archive that `ctr images import`, `docker load` and `podman load` read; returns the image's digest.

    Args:
        target: the file; it appears when it is complete.
        name: `repository:tag`; a name without a registry is Docker Hub's, as container runtimes read it.
        layers: bottom first.
        config: the image configuration's `config` (Entrypoint, Env, User, Labels).
        architecture: Go's word (`amd64`, `arm64`).
        created: RFC 3339 time.
    """
    image = _json(
        {
            "created": created,
            "architecture": architecture,
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
            "history": [{"created": created, "created_by": layer.created_by} for layer in layers],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, image),
            "layers": [
                {"mediaType": _LAYER, "digest": f"sha256:{layer.digest}", "size": layer.path.stat().st_size}
                for layer in layers
            ],
        }
    )
    annotations = {
        "io.containerd.image.name": _full_name(name),
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    platform = {"architecture": architecture, "os": "linux"}
    index = _json(
        {
            "schemaVersion": 2,
            "manifests": [{**_descriptor(_MANIFEST, manifest), "platform": platform, "annotations": annotations}],
        }
    )
    docker = _json(
        [{"Config": _blob(_sha(image)), "RepoTags": [name], "Layers": [_blob(layer.digest) for layer in layers]}]
    )
    partial = target.with_suffix(f".partial{os.getpid()}")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT, copybufsize=_BLOCK) as tar:
        for path, data in (
            ("oci-layout", _json({"imageLayoutVersion": "1.0.0"})),
            ("index.json", index),
            ("manifest.json", docker),
            (_blob(_sha(image)), image),
            (_blob(_sha(manifest)), manifest),
        ):
            tar.addfile(_entry(path, len(data)), io.BytesIO(data))
        for layer in layers:
            with layer.path.open("rb") as blob:
                tar.addfile(_entry(_blob(layer.digest), layer.path.stat().st_size), blob)
    partial.replace(target)
    return f"sha256:{_sha(manifest)}"


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest}"


def _entry(path: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.size = size
    return info


def _descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{_sha(data)}", "size": len(data)}


def _full_name(name: str) -> str:
    """`local/hamipy:dev` -> `docker.io/local/hamipy:dev`, `busybox:1` -> `docker.io/library/busybox:1`."""
    first, slash, _ = name.partition("/")
    if not slash:
        return f"docker.io/library/{name}"
    return name if "." in first or ":" in first or first == "localhost" else f"docker.io/{name}"
