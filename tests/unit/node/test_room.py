"""The room check before a container starts; amounts are those of core.fit, what counts is whom it asks."""

from msgspec.structs import replace

from hamipy.core.model import Allocation, ContainerKind, Device, Share
from hamipy.node.pods import PodRecord
from hamipy.node.room import refuse, swapped

IDS = frozenset({"x::0"})
DEVICES = {"a": Device(id="a", index=0, vendor="v", model="M", memory=10, slots=2)}


def pod(
    uid: str, memory: int = 4, cores: int = 0, kind: ContainerKind = ContainerKind.APP, device: str = "a"
) -> PodRecord:
    allocation = Allocation({"m": (Share(device, memory, cores),)})
    return PodRecord(uid, "ns", uid, "n1", "", {"m": kind}, {"m": 1}, allocation)


def why(of: PodRecord, *before: PodRecord) -> str:
    return refuse(of, "m", IDS, node="n1", devices=DEVICES, before=before)


def test_pods_that_fit_beside_each_other() -> None:
    assert why(pod("p"), pod("q", 6)) == ""
    assert "no room for it beside ns/q" in why(pod("p"), pod("q", 7))


def test_slots_cores_and_exclusive_devices_count() -> None:
    assert "no room" in why(pod("p", 0), pod("q", 0), pod("r", 0))
    assert "no room" in why(pod("p", 0, 60), pod("q", 0, 50))
    assert "no room" in why(pod("p", 0, 100), pod("q", 0, 0))


def test_finished_pods_and_the_pod_itself_do_not_count_against_it() -> None:
    assert why(pod("p", 8), replace(pod("q", 8), finished=True), pod("p", 8)) == ""


def test_overcommit_on_another_device_is_none_of_its_business() -> None:
    assert why(pod("p"), pod("q", 99, device="elsewhere")) == ""


def test_pod_of_another_node() -> None:
    assert "bound to node n2, this is n1" in why(replace(pod("p"), node="n2"))


def test_ids_of_other_devices_are_noticed_in_any_order() -> None:
    shares = (Share("a", 1, 0), Share("b", 1, 0))
    assert not swapped(shares, {"b::3", "a::1"})
    assert swapped(shares, {"a::3", "a::1"})
