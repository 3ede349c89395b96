"""What a pod asks for: each default, each refusal with its sentence, and what the webhook fills in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamipy.core.errors import InvalidRequest
from hamipy.core.family import NEUTRAL, Families, Family, Meaning, Resource
from hamipy.core.model import Constraints, ContainerKind, ContainerRequest, PodRequest
from hamipy.core.request import ContainerResources, completions, read_container, read_pod, refuse_reserved
from tests.unit.core.budget import examples

Gi, Mi = 2**30, 2**20
OTHER = Family(
    "example.com",
    (
        Resource("example.com/gpu", Meaning.COUNT),
        Resource("example.com/gpumem", Meaning.MEMORY, unit=Mi),
        Resource("example.com/gpucores", Meaning.CORES, maximum=100),
    ),
)
FAMILIES = Families((NEUTRAL, OTHER))
APP = ContainerKind.APP


def container(limits: dict[str, str], requests: dict[str, str] | None = None) -> ContainerResources:
    return ContainerResources("main", APP, limits, {} if requests is None else requests)


def ours(**amounts: str) -> dict[str, str]:
    return {f"hamipy.io/{name.replace('_', '-')}": amount for name, amount in amounts.items()}


def read(limits: dict[str, str], requests: dict[str, str] | None = None) -> ContainerRequest | None:
    return read_container(container(limits, requests), FAMILIES)


# -- what is asked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "count", "memory", "percentage", "cores"),
    [
        (ours(device="1"), 1, None, 100, 100),
        (ours(device="4"), 4, None, 100, 100),
        (ours(memory="8Gi"), 1, 8 * Gi, None, 0),
        (ours(memory="1Mi"), 1, Mi, None, 0),
        (ours(memory="1Pi"), 1, 2**50, None, 0),
        (ours(memory="8000M"), 1, 8 * 10**9, None, 0),
        (ours(memory="1e9"), 1, 10**9, None, 0),
        (ours(memory_percentage="50"), 1, None, 50, 0),
        (ours(memory_percentage="100"), 1, None, 100, 0),
        (ours(cores="30"), 1, None, 30, 30),
        (ours(cores="100"), 1, None, 100, 100),
        (ours(memory="2Gi", cores="100"), 1, 2 * Gi, None, 100),
        (ours(memory="2Gi", cores="30", device="2"), 2, 2 * Gi, None, 30),
        (ours(memory_percentage="25", cores="30"), 1, None, 25, 30),
        (ours(device="2", cores="30"), 2, None, 30, 30),
        (ours(device="2", memory="4Gi", memory_total="8Gi"), 2, 4 * Gi, None, 0),
        (ours(device="1k"), 1000, None, 100, 100),
        ({"example.com/gpu": "2", "example.com/gpumem": "3000"}, 2, 3000 * Mi, None, 0),
        ({"example.com/gpucores": "40"}, 1, None, 40, 40),
    ],
)
def test_what_is_left_out_has_its_default(
    limits: dict[str, str], count: int, memory: int | None, percentage: int | None, cores: int
) -> None:
    asked = ContainerRequest("main", APP, count, memory, percentage, cores)
    assert read(limits) == asked
    assert read({**limits, "cpu": "2", "memory": "1Gi"}, {"cpu": "1"}) == asked
    assert read(limits, limits) == asked
    assert asked.exclusive == (cores == 100)


def test_a_request_that_says_the_same_in_other_words_is_equal() -> None:
    assert read(ours(memory="1Gi"), ours(memory="1024Mi")) is not None


def test_a_container_without_our_names_asks_for_nothing() -> None:
    assert read({}) is None
    assert read({"cpu": "1", "nvidia.com/gpu": "1"}, {"cpu": "1"}) is None
    assert completions(container({"cpu": "1"}), FAMILIES) == {}


def test_percentages_are_of_the_device_and_round_down() -> None:
    asked = ContainerRequest("main", APP, 1, None, 33)
    assert [asked.memory_on(total) for total in (0, 1, 100, 101, 16 * Gi)] == [0, 0, 33, 33, 16 * Gi * 33 // 100]


# -- what is refused -------------------------------------------------------------------------------------------------

LIMIT = "container main resources.limits[hamipy.io/{}]: "


@pytest.mark.parametrize(
    ("limits", "field", "value", "fix"),
    [
        (ours(memory="8000"), "memory", "'8000'", "is 8000 bytes, less than 1Mi; did you mean 8000Mi?"),
        (ours(memory="1"), "memory", "'1'", "is 1 bytes, less than 1Mi; did you mean 1Mi?"),
        (ours(memory="0"), "memory", "'0'", "must be 1Mi..1Pi"),
        (ours(memory="-8Gi"), "memory", "'-8Gi'", "must be 1Mi..1Pi"),
        (ours(memory="2Pi"), "memory", "'2Pi'", "must be 1Mi..1Pi"),
        (ours(memory="9Ei"), "memory", "'9Ei'", "'9Ei' is beyond 64 bits"),
        (ours(memory="1e99"), "memory", "'1e99'", "beyond 64 bits"),
        (ours(memory="8Gb"), "memory", "'8Gb'", "must be a whole Kubernetes quantity: '8Gb' is not a Kubernetes"),
        (ours(memory="much"), "memory", "'much'", "is not a Kubernetes quantity such as 3, 500m or 8Gi"),
        (ours(memory=""), "memory", "''", "is not a Kubernetes quantity"),
        (ours(memory="1.5"), "memory", "'1.5'", "is not a whole number"),
        (ours(memory_percentage="0"), "memory-percentage", "'0'", "must be 1..100"),
        (ours(memory_percentage="101"), "memory-percentage", "'101'", "must be 1..100"),
        (ours(memory_percentage="-1"), "memory-percentage", "'-1'", "must be 1..100"),
        (ours(memory_percentage="500m"), "memory-percentage", "'500m'", "is not a whole number"),
        (ours(cores="0"), "cores", "'0'", "must be 1..100"),
        (ours(cores="101"), "cores", "'101'", "must be 1..100"),
        (ours(cores="-5"), "cores", "'-5'", "must be 1..100"),
        (ours(cores="0.5"), "cores", "'0.5'", "is not a whole number"),
        (ours(device="0"), "device", "'0'", "must be 1..1024"),
        (ours(device="-1"), "device", "'-1'", "must be 1..1024"),
        (ours(device="1025"), "device", "'1025'", "must be 1..1024"),
        (ours(device="500m"), "device", "'500m'", "is not a whole number"),
        (ours(memory="1Gi", memory_percentage="50"), "memory-percentage", "50", "keep one of them"),
        (ours(memory="1Gi", memory_total="2Gi"), "memory-total", str(2 * Gi), "leave it out"),
        (ours(memory_total="2Gi"), "memory-total", str(2 * Gi), "is filled in for quotas (devices x memory)"),
        (ours(memory_percentage="50", memory_total="2Gi"), "memory-total", str(2 * Gi), "leave it out"),
        (ours(mem="1Gi"), "mem", "'1Gi'", "is not a resource of ours; did you mean hamipy.io/memory?"),
        (ours(gpu="1"), "gpu", "'1'", "is not a resource of ours; known are hamipy.io/device, hamipy.io/memory, "),
        (ours(zzzzzzzzz="1"), "zzzzzzzzz", "'1'", "is not a resource of ours; known are hamipy.io/device, "),
    ],
)
def test_a_bad_amount_is_refused_naming_field_value_and_fix(
    limits: dict[str, str], field: str, value: str, fix: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(limits)
    said = str(refusal.value)
    assert said.startswith(LIMIT.format(field) + value + ": ")
    assert fix in said
    assert "\n" not in said


def test_another_unit_is_bounded_in_its_own_numbers() -> None:
    with pytest.raises(InvalidRequest, match=r"example.com/gpumem\]: '2000000000': must be 1\.\.1073741824"):
        read({"example.com/gpumem": "2000000000"})


def test_two_families_in_one_container_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="mixes families; ask for one device in one family's names"):
        read({**ours(memory="1Gi"), "example.com/gpu": "1"})


def test_requests_that_differ_from_limits_are_refused() -> None:
    where = r"container main resources\.requests\[hamipy\.io/memory\]: "
    with pytest.raises(InvalidRequest, match=where + r"'1Gi': must equal resources\.limits \(2Gi\), or be left out"):
        read(ours(memory="2Gi"), ours(memory="1Gi"))
    with pytest.raises(InvalidRequest, match=where + r"'1Gi': write it under resources\.limits"):
        read({}, ours(memory="1Gi"))
    with pytest.raises(InvalidRequest, match=where + r"'x': must be a whole Kubernetes quantity"):
        read(ours(memory="2Gi"), ours(memory="x"))


def test_a_long_value_is_cut_in_the_sentence() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(ours(memory="1" * 5000))
    assert len(str(refusal.value)) < 400


# -- what the webhook fills in ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "added"),
    [
        (ours(device="2"), {}),
        (ours(memory="8Gi"), ours(device="1", memory_total=str(8 * Gi))),
        (ours(memory="8Gi", device="3"), ours(memory_total=str(24 * Gi))),
        (ours(memory_percentage="50"), ours(device="1")),
        (ours(cores="30"), ours(device="1", memory_percentage="30")),
        (ours(cores="30", memory_percentage="10"), ours(device="1")),
        (ours(cores="30", memory="1Gi"), ours(device="1", memory_total=str(Gi))),
        ({"example.com/gpu": "2"}, ours(device="2")),
    ],
)
def test_the_webhook_fills_in_what_is_left_out(limits: dict[str, str], added: dict[str, str]) -> None:
    assert completions(container(limits), FAMILIES) == added


amounts = st.fixed_dictionaries(
    {},
    optional={
        "hamipy.io/device": st.integers(1, 1024).map(str),
        "hamipy.io/memory": st.integers(Mi, 2**50).map(str) | st.integers(1, 900).map(lambda g: f"{g}Gi"),
        "hamipy.io/memory-percentage": st.integers(1, 100).map(str),
        "hamipy.io/cores": st.integers(1, 100).map(str),
    },
).filter(lambda limits: limits and not {"hamipy.io/memory", "hamipy.io/memory-percentage"} <= set(limits))


@examples(300)
@given(amounts)
def test_filling_in_twice_adds_nothing_and_changes_no_meaning(limits: dict[str, str]) -> None:
    added = completions(container(limits), FAMILIES)
    full = {**limits, **added}
    assert not set(added) & set(limits)
    assert "hamipy.io/device" in full
    assert completions(container(full), FAMILIES) == {}
    assert read(full) == read(limits)


# -- the pod ---------------------------------------------------------------------------------------------------------


def read_with(annotations: dict[str, str], *containers: ContainerResources) -> PodRequest | None:
    return read_pod(
        uid="u",
        namespace="default",
        name="p",
        containers=containers or (container(ours(device="1")),),
        annotations=annotations,
        families=FAMILIES,
    )


def test_containers_keep_their_order_and_those_without_our_names_are_left_out() -> None:
    pod = read_with(
        {},
        ContainerResources("i", ContainerKind.INIT, ours(memory="1Gi"), {}),
        ContainerResources("plain", ContainerKind.SIDECAR, {"cpu": "1"}, {}),
        ContainerResources("s", ContainerKind.SIDECAR, ours(cores="10"), {}),
        ContainerResources("a", APP, ours(device="2"), {}),
    )
    assert pod is not None
    assert [(c.name, c.kind.value) for c in pod.containers] == [("i", "init"), ("s", "sidecar"), ("a", "app")]


def test_a_pod_without_our_names_asks_for_nothing_whatever_its_annotations_say() -> None:
    assert read_with({"hamipy.io/nonsense": "x"}, container({"cpu": "1"})) is None


def test_constraints_are_lists_without_blanks() -> None:
    pod = read_with(
        {
            "hamipy.io/vendor": "mock",
            "hamipy.io/model": " T4 , A100* ,",
            "hamipy.io/model-exclude": "X1",
            "hamipy.io/uuid": "a,b",
            "hamipy.io/uuid-exclude": "c",
            "hamipy.io/isolation": "mig",
            "hamipy.io/node-policy": "spread",
            "hamipy.io/device-policy": "binpack",
            "hamipy.io/allocation": "left to its codec",
            "hamipy.io/retry": "3",
            "example.com/other": "not ours",
        }
    )
    assert pod is not None
    assert pod.constraints == Constraints(("mock",), ("T4", "A100*"), ("X1",), ("a", "b"), ("c",), ("mig",))
    assert (pod.node_policy, pod.device_policy) == ("spread", "binpack")


@pytest.mark.parametrize(
    ("annotation", "value", "fix"),
    [
        ("model", "", "must be a comma-separated list with at least one entry"),
        ("uuid", " , ", "must be a comma-separated list with at least one entry"),
        ("node-policy", "fullest", "must be one of binpack, spread"),
        ("device-policy", "Binpack", "must be one of binpack, spread"),
        ("modle", "T4", "is not an annotation of ours; did you mean hamipy.io/model?"),
        ("zzzz", "1", "is not an annotation of ours; known are vendor, model"),
        ("numa", "require", "is not available in this version of hamipy; leave it out"),
        ("topology", "prefer", "is not available in this version of hamipy; leave it out"),
        ("rdma", "true", "is not available in this version of hamipy; leave it out"),
        ("partition", "1g.5gb", "is not available in this version of hamipy; leave it out"),
    ],
)
def test_a_bad_annotation_is_refused_naming_field_value_and_fix(annotation: str, value: str, fix: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read_with({f"hamipy.io/{annotation}": value})
    assert str(refusal.value).startswith(f"metadata.annotations[hamipy.io/{annotation}]: {value!r}: ")
    assert fix in str(refusal.value)


@pytest.mark.parametrize("name", ["allocation", "retry"])
def test_reserved_annotations_are_refused(name: str) -> None:
    refuse_reserved({"hamipy.io/model": "T4"})
    with pytest.raises(
        InvalidRequest, match=rf"annotations\[hamipy.io/{name}\]: 'x': is written by the scheduler only"
    ):
        refuse_reserved({f"hamipy.io/{name}": "x"})
