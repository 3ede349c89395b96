"""The chart's fixtures: the real helm, and a bare API server with the chart installed."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.bare import JSON, BareApiServer
from tests.cluster.binaries import Binaries, obtain

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "hamipy"
NAMESPACE = "hamipy-system"
MOCK: JSON = {"image": {"repository": "local/hamipy"}, "vendors": {"mock": {"enabled": True}}}


class HelmError(Exception):
    """helm refused; the text is what it printed."""


class Helm:
    """The real helm."""

    def __init__(self, executable: str, directory: Path) -> None:
        self._executable, self._directory = executable, directory

    def __call__(self, *arguments: str, values: JSON | None = None, kubeconfig: Path | None = None) -> str:
        """Run it and return what it printed.

        Raises:
            HelmError: it failed.
        """
        command = [self._executable, *arguments]
        if values is not None:
            file = self._directory / "values.json"
            file.write_text(json.dumps(values))
            command += ["--values", str(file)]
        home = {f"HELM_{k}_HOME": str(self._directory / k.lower()) for k in ("CACHE", "CONFIG", "DATA")}
        env = {"PATH": os.environ["PATH"], "HOME": str(self._directory), **home}
        if kubeconfig:
            env["KUBECONFIG"] = str(kubeconfig)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise HelmError(done.stderr)
        return done.stdout

    def template(
        self, values: JSON | None = None, *, version: str = "v1.36.3", namespace: str = NAMESPACE
    ) -> list[JSON]:
        """Render the chart with `values` over a working minimum; documents without content are left out."""
        flags = ["--namespace", namespace, "--kube-version", version]
        text = self("template", "hamipy", str(CHART), *flags, values={**MOCK, **(values or {})})
        return [d for d in yaml.safe_load_all(text) if d]


class Rendered:
    """Documents of one rendering, found by kind and name."""

    def __init__(self, documents: list[JSON]) -> None:
        self.documents = documents

    def __call__(self, kind: str, name: str) -> JSON:
        found = [d for d in self.documents if d["kind"] == kind and d["metadata"]["name"] == name]
        assert len(found) == 1, (
            f"{kind} {name}: {len(found)} of {[(d['kind'], d['metadata']['name']) for d in self.documents]}"
        )
        return found[0]

    def has(self, kind: str, name: str) -> bool:
        """Whether there is such a document."""
        return any(d["kind"] == kind and d["metadata"]["name"] == name for d in self.documents)

    def container(self, kind: str, name: str, container: str) -> JSON:
        """One container of a workload."""
        spec: JSON = self(kind, name)["spec"]["template"]["spec"]
        found: JSON = next(c for c in spec["containers"] if c["name"] == container)
        return found


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    return obtain()


@pytest.fixture(scope="session")
def helm(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(binaries["helm"], tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def render(helm: Helm) -> Callable[..., Rendered]:
    def rendered(values: JSON | None = None, **options: Any) -> Rendered:
        return Rendered(helm.template(values, **options))

    return rendered


@pytest.fixture(scope="session")
def rendered(render: Callable[..., Rendered]) -> Rendered:
    """The chart with its default values, and the mock vendor."""
    return render()


@pytest.fixture(scope="session")
def api(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareApiServer]:
    server = BareApiServer(tmp_path_factory.mktemp("api"), binaries)
    try:
        server.start()
        yield server
    finally:
        server.stop()
