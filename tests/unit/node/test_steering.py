"""Steering finds the container that the kubelet is asking for, and always answers something sensible."""

from hypothesis import given
from hypothesis import strategies as st

from hamipy.core.model import Allocation, ContainerKind, Share
from hamipy.core.names import device_of
from hamipy.node.checkpoint import Holding
from hamipy.node.pods import PodRecord
from hamipy.node.steering import choose, expected


def pod(uid: str, order: int, **containers: tuple[str, ...]) -> PodRecord:
    shares = {name: tuple(Share(d, 1, 0) for d in devices) for name, devices in containers.items()}
    kinds = dict.fromkeys(containers, ContainerKind.APP)
    return PodRecord(uid, "ns", uid, "n1", "", kinds, {}, Allocation(shares), order=order)


def held(uid: str, *containers: str) -> dict[str, dict[str, Holding]]:
    return {uid: {c: Holding(uid, c, frozenset(), "") for c in containers}}


def devices(shares: tuple[Share, ...]) -> list[str]:
    return [s.device for s in shares]


def test_pods_come_in_the_order_the_kubelet_sees_them() -> None:
    assert devices(expected([pod("b", 2, m=("y",)), pod("a", 1, m=("x",))], {}, 1)) == ["x"]


def test_pod_that_has_begun_comes_first_with_its_next_container() -> None:
    pods = [pod("a", 1, m=("x",)), pod("b", 2, m=("y",), n=("z",))]
    assert devices(expected(pods, held("b", "m"), 1)) == ["z"]


def test_container_of_another_size_is_not_meant() -> None:
    assert devices(expected([pod("a", 1, m=("x", "y")), pod("b", 2, m=("z",))], {}, 1)) == ["z"]


def test_admitted_finished_and_deleted_pods_are_not_meant() -> None:
    from msgspec.structs import replace

    done = replace(pod("a", 1, m=("x",)), finished=True)
    deleted = replace(pod("b", 2, m=("x",)), deleting=True)
    unknown = replace(pod("c", 3, m=("x",)), allocation=None)
    assert expected([done, deleted, unknown, pod("d", 4, m=("x",))], held("d", "m"), 1) == ()


def test_one_id_on_each_wanted_device() -> None:
    available = ["a::0", "a::1", "b::0", "c::0"]
    assert choose(available, [], 2, ["c", "a"]) == ["c::0", "a::0"]


def test_what_the_kubelet_has_picked_already_is_kept() -> None:
    assert choose(["a::0", "a::1", "b::0"], ["a::1"], 2, ["a", "b"]) == ["a::1", "b::0"]


def test_without_a_wish_the_emptiest_devices_are_taken_one_id_each() -> None:
    assert choose(["a::0", "b::0", "b::1"], [], 2, []) == ["b::0", "a::0"]


IDS = st.lists(
    st.one_of(st.builds("{}::{}".format, st.sampled_from("abcd"), st.integers(0, 9)), st.text(max_size=5)), unique=True
)


@given(available=IDS, size=st.integers(-1, 12), wanted=st.lists(st.sampled_from("abcdz"), max_size=4), data=st.data())
def test_any_question_gets_a_subset_of_the_right_size(
    available: list[str], size: int, wanted: list[str], data: st.DataObject
) -> None:
    must = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=max(0, size))) if available else []
    answer = choose(available, must, size, wanted)
    assert len(answer) == max(0, min(size, len(available)))
    assert len(set(answer)) == len(answer)
    assert set(must) <= set(answer) <= set(available)
    possible = [d for d in dict.fromkeys(wanted) if any(device_of(i) == d for i in available)]
    if not must and size >= len(possible):
        assert {device_of(i) for i in answer} >= set(possible)
