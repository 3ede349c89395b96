"""Families are data: refused when they contradict themselves or each other; what a node publishes under their names."""

import pytest

from hamipy.core.errors import InvalidField
from hamipy.core.family import NEUTRAL, Families, Family, Meaning, Resource, read_family
from hamipy.core.model import Device

Gi, Mi = 2**30, 2**20
MEBIBYTES = {
    "name": "example.com",
    "resources": [
        {"name": "example.com/gpu", "meaning": "count"},
        {"name": "example.com/gpumem", "meaning": "memory", "unit": Mi},
        {"name": "example.com/gpucores", "meaning": "cores", "maximum": 100},
    ],
}


def test_a_family_is_read_from_its_document() -> None:
    family = read_family(MEBIBYTES)
    assert family.named(Meaning.MEMORY) == Resource("example.com/gpumem", Meaning.MEMORY, unit=Mi)
    assert family.named(Meaning.MEMORY_PERCENTAGE) is None
    assert family.vendors == ()


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"name": "x"}, "resources"),
        ({"name": "x", "resources": [{"name": "x/a", "meaning": "beauty"}]}, "beauty"),
        ({"name": "x", "resources": [{"name": "x/a", "meaning": "count", "colour": 1}]}, "colour"),
        ({"name": "x", "resources": [], "extra": 1}, "extra"),
        ({"name": "x", "resources": "x/a"}, "resources"),
        ([], "object"),
        (None, "object"),
    ],
)
def test_a_document_that_is_no_family_is_refused_by_its_field(document: object, said: str) -> None:
    with pytest.raises(InvalidField, match=said):
        read_family(document)


def test_two_names_of_one_meaning_are_refused() -> None:
    with pytest.raises(InvalidField, match=r"give each meaning one name"):
        Family("x", (Resource("x/a", Meaning.COUNT), Resource("x/b", Meaning.COUNT)))


def test_two_families_that_claim_one_name_are_refused() -> None:
    other = Family("other", (Resource("hamipy.io/cores", Meaning.CORES),))
    with pytest.raises(InvalidField, match=r"family other: 'hamipy.io/cores': is already a name of family hamipy.io"):
        Families((NEUTRAL, other))


def test_a_name_is_ours_when_a_family_has_it_or_its_domain_is_a_family() -> None:
    families = Families((NEUTRAL, read_family(MEBIBYTES)))
    for name in ("hamipy.io/memory", "hamipy.io/typo", "example.com/gpu", "example.com/gpus"):
        assert families.ours(name)
    for name in ("cpu", "memory", "nvidia.com/gpu", "hamipy.ioo/device", "x.hamipy.io/device"):
        assert not families.ours(name)


def test_a_node_publishes_memory_as_the_sum_and_percentages_as_a_hundred_for_each_device() -> None:
    devices = (
        Device("a", 0, "mock", "T4", 14 * Gi, 10),
        Device("b", 1, "mock", "T4", 80 * Gi + 5, 10, cores=60, healthy=False),
    )
    assert NEUTRAL.capacity(devices) == {
        "hamipy.io/memory": 94 * Gi + 5,
        "hamipy.io/memory-total": 94 * Gi + 5,
        "hamipy.io/memory-percentage": 200,
        "hamipy.io/cores": 160,
    }
    assert read_family(MEBIBYTES).capacity(devices) == {"example.com/gpumem": 94 * 1024, "example.com/gpucores": 160}


def test_the_kubelets_own_resource_is_not_published() -> None:
    assert "hamipy.io/device" not in NEUTRAL.capacity((Device("a", 0, "mock", "T4", Gi, 10),))
