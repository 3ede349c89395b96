"""What the documents show is true: commands exist, examples are accepted, sentences are said."""

import re
import subprocess
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from hamipy.cli.main import _COMMANDS
from hamipy.core import registry
from hamipy.core.errors import HamipyError
from hamipy.core.family import NEUTRAL, Families
from hamipy.core.model import ContainerKind, PodRequest
from hamipy.core.request import CONSTRAINTS, ContainerResources, read_pod
from hamipy.core.vendor import ContainerEdits, Discovered, VendorContext

ROOT = Path(__file__).parents[3]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _blocks(path: Path, language: str = "") -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
    return [text for of, text in fences if of == language]


def _commands(path: Path) -> list[str]:
    lines = [line.partition("#")[0].strip() for block in _blocks(path) for line in block.splitlines()]
    return [line for line in lines if line.split()[:1] in (["make"], ["hamipy"], ["kubectl"], ["helm"])]


@pytest.mark.parametrize("path", DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_shown_exists(path: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in _commands(path):
        words = command.split()
        if words[0] == "make":
            assert words[1] in targets, command
        if words[0] == "hamipy":
            assert words[1] in _COMMANDS, command
        for word in words:
            if word.startswith(("charts/", "examples/")):
                assert (ROOT / word).exists(), command


@pytest.mark.parametrize("path", DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize("path", DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_value_of_the_chart_that_is_named_exists(path: Path) -> None:
    values = yaml.safe_load((ROOT / "charts/hamipy/values.yaml").read_text())
    for name in re.findall(r"`([a-zA-Z]+(?:\.[a-zA-Z]+)+)(?:\.\*)?`", path.read_text()):
        at: Any = values
        for part in name.split(".") if name.partition(".")[0] in values else ():
            assert isinstance(at, dict), f"{path.name}: {name}"
            assert part in at, f"{path.name}: {name}"
            at = at[part]


def test_operating_and_the_chart_need_the_same_kubernetes() -> None:
    chart = yaml.safe_load((ROOT / "charts/hamipy/Chart.yaml").read_text())
    for path in (ROOT / "docs/operating.md", ROOT / "charts/hamipy/README.md"):
        (version,) = re.findall(r"Kubernetes (\d+\.\d+) or newer", path.read_text())
        assert chart["kubeVersion"] == f">={version}.0-0"


def test_the_readme_s_two_commands_are_what_ci_calls() -> None:
    assert {"make demo", "make test"} <= set(_commands(ROOT / "README.md"))
    assert "make test" in (ROOT / ".ci/run").read_text()


def test_the_three_lines_of_the_readme_are_a_request() -> None:
    (block,) = _blocks(ROOT / "README.md", "yaml")
    limits = {k: str(v) for k, v in yaml.safe_load(block)["resources"]["limits"].items()}
    request = _read(limits)
    assert request is not None
    (container,) = request.containers
    assert (container.count, container.memory, container.cores) == (1, 7 * 2**30, 50)


def test_the_example_asks_for_half_a_card() -> None:
    pod = yaml.safe_load((ROOT / "examples/half-a-card.yaml").read_text())
    (container,) = pod["spec"]["containers"]
    request = _read({k: str(v) for k, v in container["resources"]["limits"].items()})
    assert request is not None
    assert (request.containers[0].memory, request.containers[0].cores) == (7 * 2**30, 50)


def test_every_resource_and_constraint_is_in_the_request_reference() -> None:
    text = (ROOT / "docs/requests.md").read_text()
    assert [r.name for r in NEUTRAL.resources if f"`{r.name}`" not in text] == []
    assert [c for c in CONSTRAINTS if f"{c}`" not in text] == []


def test_the_refusals_of_the_request_reference_are_said_to_the_letter() -> None:
    (block,) = [b for b in _blocks(ROOT / "docs/requests.md") if "did you mean" in b]
    for line in block.splitlines():
        limit = re.match(r"container main resources\.limits\[(.*?)\]: '(.*?)'", line)
        annotation = re.match(r"metadata\.annotations\[(.*?)\]: '(.*?)'", line)
        limits = {limit[1]: limit[2]} if limit else {"hamipy.io/memory": "1Gi"}
        with pytest.raises(HamipyError) as refusal:
            _read(limits, {annotation[1]: annotation[2]} if annotation else {})
        assert str(refusal.value) == line


def test_the_vendor_of_the_vendor_document_works(tmp_path: Path) -> None:
    source = _blocks(ROOT / "docs/vendors.md", "python")[0]
    module = types.ModuleType("acme_hamipy")
    exec(compile(source, "acme_hamipy", "exec"), module.__dict__)

    class _EntryPoint:
        name = "acme"

        @staticmethod
        def load() -> types.ModuleType:
            return module

    found = registry.load(
        lambda name: VendorContext(settings={}, state=tmp_path, node="n1"),
        entry_points=[_EntryPoint()],  # type: ignore[list-item]
    )
    assert found.problems == {}
    acme = found.vendors["acme"]
    discovered = acme.discover()
    assert isinstance(discovered, Discovered)
    assert [d.id for d in discovered.devices] == ["ACME-0001"]
    assert acme.edits is not None
    edits = acme.edits(types.SimpleNamespace(devices=discovered.devices))  # type: ignore[arg-type]
    assert isinstance(edits, ContainerEdits)
    assert edits.device_nodes[0].path == "/dev/acme0"


def test_every_decision_is_listed() -> None:
    listed = (ROOT / "docs/decisions/README.md").read_text()
    for path in (ROOT / "docs/decisions").glob("0*.md"):
        assert path.name in listed


def test_nothing_in_the_tree_names_a_path_of_the_machine_it_was_made_on() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    named = [f for f in files if (ROOT / f).is_file() and f"{ROOT}/".encode() in (ROOT / f).read_bytes()]
    assert named == []


def _read(limits: dict[str, str], annotations: dict[str, str] | None = None) -> PodRequest | None:
    container = ContainerResources("main", ContainerKind.APP, limits, {})
    return read_pod(
        uid="u", namespace="n", name="p", containers=[container], annotations=annotations or {}, families=Families()
    )
