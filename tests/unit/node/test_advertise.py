"""Which ids the kubelet is told of."""

from hamipy.core.model import Device
from hamipy.node.advertise import advertised


def device(name: str, slots: int = 2, healthy: bool = True) -> Device:
    return Device(id=name, index=0, vendor="v", model="M", memory=1, slots=slots, healthy=healthy)


def test_every_slot_of_every_device_is_an_id() -> None:
    assert advertised([device("a"), device("b", 1)], ()) == {"a::0": True, "a::1": True, "b::0": True}


def test_only_free_ids_of_a_sick_device_are_unhealthy() -> None:
    assert advertised([device("a", healthy=False)], {"a::1"}) == {"a::0": False, "a::1": True}


def test_ids_in_use_of_a_device_that_is_gone_stay() -> None:
    assert advertised([device("b", 1)], {"a::7"}) == {"b::0": True, "a::7": True}


def test_ids_beyond_the_slots_that_a_device_has_now_stay_while_in_use() -> None:
    assert advertised([device("a", 1)], {"a::3"}) == {"a::0": True, "a::3": True}
