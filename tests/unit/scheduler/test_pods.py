"""Pods read into views: shapes are read once, nothing an author wrote raises."""

from typing import Any

import msgspec
import pytest

from hamipy.core.family import Families
from hamipy.core.model import ContainerKind
from hamipy.kube.objects import Pod
from hamipy.scheduler.pods import PodReader


def pod(limits: dict[str, Any] | None = None, **more: Any) -> Pod:
    containers = more.pop("containers", [{"name": "main", "resources": {"limits": limits or {}}}])
    metadata = {"name": "a", "namespace": "default", "uid": "u", **more.pop("metadata", {})}
    return msgspec.convert(
        {"metadata": metadata, "spec": {"containers": containers, "priority": 7, **more.pop("spec", {})}, **more}, Pod
    )


@pytest.fixture
def reader() -> PodReader:
    return PodReader(Families())


def test_pods_of_one_shape_share_what_is_read(reader: PodReader) -> None:
    one = reader.read(pod({"hamipy.io/memory": "1Gi"}))
    two = reader.read(pod({"hamipy.io/memory": "1Gi"}, metadata={"uid": "v", "name": "b"}))
    assert one.request is not None
    assert two.request is not None
    assert one.request.containers is two.request.containers
    assert one.requested is two.requested
    assert (two.request.uid, two.request.name, two.request.priority) == ("v", "b", 7)


def test_constraints_belong_to_the_shape_and_reserved_annotations_do_not(reader: PodReader) -> None:
    plain = reader.read(pod({"hamipy.io/cores": "5"}))
    bound = reader.read(pod({"hamipy.io/cores": "5"}, metadata={"annotations": {"hamipy.io/retry": "1"}}))
    picky = reader.read(pod({"hamipy.io/cores": "5"}, metadata={"annotations": {"hamipy.io/vendor": "acme"}}))
    assert plain.request == bound.request
    assert picky.request is not None
    assert picky.request.constraints.vendor == ("acme",)


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({"hamipy.io/memory": "x"}, {}),
        ({"hamipy.io/memory": "-1"}, {}),
        ({"hamipy.io/memory": "1e99"}, {}),
        ({"hamipy.io/device": "0.5"}, {}),
        ({"hamipy.io/unheard-of": "1"}, {}),
        ({"hamipy.io/cores": "5"}, {"hamipy.io/numa": "require"}),
        ({"hamipy.io/cores": "5"}, {"hamipy.io/nonsense": ""}),
    ],
)
def test_what_cannot_be_read_is_a_problem_and_no_exception(
    reader: PodReader, limits: dict[str, str], annotations: dict[str, str]
) -> None:
    view = reader.read(pod(limits, metadata={"annotations": annotations}))
    assert view.request is None
    assert view.ours
    assert next(iter(annotations or limits)) in view.problem


def test_a_pod_of_others_has_no_request_and_no_problem(reader: PodReader) -> None:
    view = reader.read(pod({"cpu": "1", "nvidia.com/gpu": "1"}))
    assert (view.request, view.problem, view.ours) == (None, "", False)


def test_an_unknown_pod_is_counted_by_its_amounts_even_when_its_constraints_are_unreadable(reader: PodReader) -> None:
    odd = pod(
        {"hamipy.io/memory": "1Gi"}, metadata={"annotations": {"hamipy.io/nonsense": "x"}}, spec={"nodeName": "n"}
    )
    held, why = reader.placed(odd, reader.read(odd))
    assert "missing" in why
    assert held is not None
    assert held.allocation is None
    assert held.request is not None
    assert held.request.containers[0].memory == 2**30


def test_kinds_of_containers_are_kubernetes_own(reader: PodReader) -> None:
    limits = {"resources": {"limits": {"hamipy.io/cores": "5"}}}
    init = [{"name": "i", **limits}, {"name": "s", "restartPolicy": "Always", **limits}, {"name": "none"}]
    view = reader.read(pod(containers=[{"name": "a", **limits}, {"name": "plain"}], spec={"initContainers": init}))
    assert view.kinds == {"i": ContainerKind.INIT, "s": ContainerKind.SIDECAR, "a": ContainerKind.APP}
    assert view.requested == {"hamipy.io/cores": 10}


def test_the_memory_of_shapes_is_bounded(reader: PodReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hamipy.scheduler.pods._MAX_SHAPES", 3)
    for i in range(1, 10):
        assert reader.read(pod({"hamipy.io/cores": str(i)})).request is not None
    assert len(reader._shapes) <= 3
