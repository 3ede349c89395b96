"""The image: what goes into it is locked, and the archive is what container runtimes read."""

import hashlib
import io
import json
import re
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.chart.conftest import ROOT
from tools.image.__main__ import CONFIG
from tools.image.oci import Layer, write_archive, write_layer

LOCK = ROOT / "tools" / "image" / "requirements.lock"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "tool").write_text("#!/bin/sh\n")
    (root / "bin" / "tool").chmod(0o755)
    (root / "bin" / "alias").symlink_to("tool")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    return root


def test_the_lock_satisfies_every_dependency() -> None:
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK.read_text(), re.MULTILINE))
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        requirement = Requirement(line)
        name = requirement.name.lower().replace("_", "-")
        assert name in locked, f"{name}: run `python -m tools.image.lock`"
        assert requirement.specifier.contains(locked[name]), (
            f"{line} but {locked[name]}: run `python -m tools.image.lock`"
        )


def test_every_locked_package_is_held_to_hashes() -> None:
    for package in LOCK.read_text().replace(" \\\n", " ").splitlines():
        assert package.startswith("#") or "--hash=sha256:" in package


def test_the_containerfile_starts_the_image_the_same_way() -> None:
    text = (ROOT / "Containerfile").read_text()
    final = text.rpartition("\nFROM ")[2]
    assert f"ENTRYPOINT {json.dumps(CONFIG['Entrypoint'])}" in final
    assert f"ENV {' '.join(CONFIG['Env'])}" in final
    assert f"USER {CONFIG['User']}" in final
    assert str(LOCK.relative_to(ROOT)) in text


def test_a_layer_depends_on_its_content_only(tree: Path, tmp_path: Path) -> None:
    first = write_layer(tree, tmp_path / "1.tar", "test")
    (tree / "bin" / "tool").touch()
    second = write_layer(tree, tmp_path / "2.tar", "test")
    assert first.digest == second.digest == hashlib.sha256((tmp_path / "1.tar").read_bytes()).hexdigest()
    with tarfile.open(first.path) as tar:
        members = {m.name: m for m in tar}
    assert list(members) == ["bin", "bin/alias", "bin/tool", "tmp"]
    assert {(m.uid, m.gid, m.mtime) for m in members.values()} == {(0, 0, 0)}
    assert (members["bin/tool"].mode, members["tmp"].mode, members["bin/alias"].linkname) == (0o755, 0o1777, "tool")


def test_two_names_of_one_file_are_both_there(tree: Path, tmp_path: Path) -> None:
    (tree / "bin" / "zwilling").hardlink_to(tree / "bin" / "tool")
    with tarfile.open(write_layer(tree, tmp_path / "l.tar", "test").path) as tar:
        for name in ("bin/tool", "bin/zwilling"):
            content = tar.extractfile(name)
            assert content is not None
            assert content.read() == b"#!/bin/sh\n"


def read(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.extractfile(name)
    assert member is not None
    return member.read()


def blob(archive: tarfile.TarFile, descriptor: dict[str, Any]) -> bytes:
    """Content of a descriptor, held to its digest and size."""
    kind, _, digest = descriptor["digest"].partition(":")
    data = read(archive, f"blobs/{kind}/{digest}")
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (digest, descriptor["size"])
    return data


def test_the_archive_reads_as_an_oci_image_and_as_dockers(tree: Path, tmp_path: Path) -> None:
    layer = write_layer(tree, tmp_path / "layer.tar", "test")
    target = tmp_path / "image.tar"
    digest = write_archive(target, "local/hamipy:dev", [layer], CONFIG, "amd64", "1970-01-01T00:00:00Z")
    with tarfile.open(target) as archive:
        assert json.loads(read(archive, "oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        (entry,) = json.loads(read(archive, "index.json"))["manifests"]
        assert entry["digest"] == digest
        assert entry["annotations"]["io.containerd.image.name"] == "docker.io/local/hamipy:dev"
        manifest = json.loads(blob(archive, entry))
        config = json.loads(blob(archive, manifest["config"]))
        assert config["config"] == CONFIG
        assert config["rootfs"]["diff_ids"] == [f"sha256:{layer.digest}"]
        (described,) = manifest["layers"]
        with tarfile.open(fileobj=io.BytesIO(blob(archive, described))) as inner:
            assert "bin/tool" in inner.getnames()
        (docker,) = json.loads(read(archive, "manifest.json"))
        assert docker["RepoTags"] == ["local/hamipy:dev"]
        assert docker["Layers"] == [f"blobs/sha256/{layer.digest}"]
        assert json.loads(read(archive, docker["Config"])) == config


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("local/hamipy:dev", "docker.io/local/hamipy:dev"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("registry.example/hamipy:1", "registry.example/hamipy:1"),
        ("localhost:5000/hamipy:1", "localhost:5000/hamipy:1"),
    ],
)
def test_a_name_is_filed_where_container_runtimes_look(tree: Path, tmp_path: Path, name: str, full: str) -> None:
    layer: Layer = write_layer(tree, tmp_path / "layer.tar", "test")
    write_archive(tmp_path / "image.tar", name, [layer], CONFIG, "amd64", "1970-01-01T00:00:00Z")
    with tarfile.open(tmp_path / "image.tar") as archive:
        (entry,) = json.loads(read(archive, "index.json"))["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == full
