"""/filter and /prioritize: what fits, why the rest does not, and what a body that makes no sense gets."""

import asyncio
from typing import Any

import msgspec
import pytest

from hamipy.core.policies import SCORE_MAX
from hamipy.scheduler.extender import BEST_BONUS
from hamipy.scheduler.wire import MAX_BODY
from tests.component.scheduler.world import PODS, World, device, until


@pytest.fixture
async def mixed(world: World) -> World:
    """A free node, one with 4 GiB left, one whose device is sick, one without devices and one that is small."""
    world.node("free")
    world.node("full")
    world.node("sick", [device("sick", 0, healthy=False, reason="ECC")])
    world.node("none", 0)
    world.node("small", memory=4)
    text = '{"v":1,"containers":{"main":[{"device":"full-0","memory":10737418240,"cores":0}]}}'
    world.pod("x", "10Gi", spec={"nodeName": "full"}, annotations={"hamipy.io/allocation": text})
    await world.start()
    return world


async def test_every_node_that_does_not_fit_has_a_reason(mixed: World) -> None:
    answer = mixed.filter(mixed.pod("a", "8Gi"), ["free", "full", "sick", "none", "small", "nowhere"])
    assert answer == {
        "NodeNames": ["free"],
        "Nodes": None,
        "FailedNodes": {"full": "node(s) without 8Gi free memory on one device (most free 4Gi)"},
        "FailedAndUnresolvableNodes": {
            "sick": "node(s) without 1 healthy device (at most 0)",
            "none": "node(s) without 1 matching device (at most 0)",
            "small": "node(s) without 8Gi memory on one device even when empty (largest has 4Gi)",
            "nowhere": "node(s) without a device inventory",
        },
        "Error": "",
    }


async def test_equal_reasons_are_equal_texts(mixed: World) -> None:
    mixed.node("small2", memory=2)
    mixed.node("small3", memory=3)
    await mixed.seen()
    answer = mixed.filter(mixed.pod("a", "20Gi"))["FailedAndUnresolvableNodes"]
    assert {answer[name] for name in ("small", "small2", "small3", "free", "full", "sick")} == {
        "node(s) without 20Gi memory on one device even when empty (largest has 14Gi)"
    }


async def test_a_filter_writes_nothing(mixed: World) -> None:
    before = len([r for r in mixed.api.requests if r.verb not in ("list", "watch")])
    pod = mixed.pod("a")
    mixed.filter(pod)
    mixed.prioritize(pod, ["free", "full"])
    assert len([r for r in mixed.api.requests if r.verb not in ("list", "watch")]) == before


async def test_a_pod_without_our_resources_passes_everywhere_untouched(mixed: World) -> None:
    names = ["sick", "nowhere", "free"]
    answer = mixed.filter(mixed.pod("plain", limits={"cpu": "1"}), names)
    assert answer["NodeNames"] == names
    assert not answer["FailedNodes"]
    assert not answer["FailedAndUnresolvableNodes"]
    assert set(mixed.prioritize(mixed.pod("plain2", limits={}), names).values()) == {0}


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"hamipy.io/memory": "-1Gi"}, "limits[hamipy.io/memory]"),
        ({"hamipy.io/memory": "8000"}, "did you mean 8000Mi"),
        ({"hamipy.io/memory": "1Gi", "hamipy.io/memory-percentage": "5"}, "limits[hamipy.io/memory-percentage]"),
        ({"hamipy.io/device": "1.5"}, "limits[hamipy.io/device]"),
        ({"hamipy.io/cors": "5"}, "did you mean hamipy.io/cores"),
    ],
)
async def test_a_request_that_cannot_be_read_is_an_error_that_names_the_field(
    mixed: World, limits: dict[str, str], field: str
) -> None:
    answer = mixed.filter(mixed.pod("bad", limits=limits))
    assert field in answer["Error"]
    assert not answer["NodeNames"]


async def test_nodes_given_as_objects_are_answered_as_objects(mixed: World) -> None:
    items = [{"metadata": {"name": n, "labels": {"kept": "yes"}}, "spec": {"more": 1}} for n in ("free", "full")]
    body = {"Pod": mixed.pod("a", "8Gi"), "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}
    answer = msgspec.json.decode(mixed.engine.extender.filter(msgspec.json.encode(body)).body)
    assert answer["Nodes"]["items"] == items[:1]
    assert answer["NodeNames"] is None
    assert list(answer["FailedNodes"]) == ["full"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{",
        b"[1]",
        b"nonsense",
        b"\xff\xfe",
        b'{"Pod":null,"NodeNames":["n"]}',
        b'{"Pod":{"metadata":{"name":5}},"NodeNames":["n"]}',
        b'{"Pod":{"metadata":{"name":"a","uid":"u"}},"NodeNames":null,"Nodes":null}',
        b'{"Pod":{"metadata":{"name":"a","uid":"u"}},"NodeNames":[1]}',
        b'{"Pod":{"metadata":{"name":"a","uid":"u"}},"NodeNames":["n"',
        b'{"Pod":' * 100_000,
        b" " * (MAX_BODY + 1),
    ],
)
async def test_a_body_that_makes_no_sense_is_one_sentence_and_nothing_half_done(mixed: World, body: bytes) -> None:
    extender = mixed.engine.extender
    filtered = extender.filter(body)
    assert (filtered.status, bool(msgspec.json.decode(filtered.body)["Error"])) == (200, True)
    for reply in (extender.prioritize(body), extender.preempt(body.replace(b"NodeNames", b"NodeNameToMetaVictims"))):
        if reply.status != 200:
            assert reply.status == 400
            assert msgspec.json.decode(reply.body)["error"]
    assert not len(mixed.engine.holds)
    assert len(mixed.engine.wakeups) == 0


async def test_a_ledger_that_is_not_in_step_answers_an_error(mixed: World) -> None:
    pod = mixed.pod("a")
    mixed.engine.state.reflectors[0].last_contact = -float("inf")
    assert "not in step" in mixed.filter(pod)["Error"]
    assert "not in step" in await mixed.bind(pod, "free")
    body = msgspec.json.encode({"Pod": pod, "NodeNames": ["free"]})
    assert mixed.engine.extender.prioritize(body).status == 503
    assert mixed.engine.extender.preempt(msgspec.json.encode({"Pod": pod})).status == 503


async def test_the_fuller_node_scores_higher(mixed: World) -> None:
    pod = mixed.pod("a", "2Gi")
    names = mixed.filter(pod, ["free", "full", "small"])["NodeNames"]
    scores = mixed.prioritize(pod, names)
    assert scores["full"] > scores["small"] > scores["free"]
    assert all(0 <= s <= SCORE_MAX + BEST_BONUS for s in scores.values())


async def test_spread_prefers_the_emptier_node(mixed: World) -> None:
    pod = mixed.pod("a", "2Gi", annotations={"hamipy.io/node-policy": "spread"})
    scores = mixed.prioritize(pod, mixed.filter(pod, ["free", "full"])["NodeNames"])
    assert scores["free"] > scores["full"]


async def test_a_node_that_went_between_filter_and_prioritize_scores_nothing(mixed: World) -> None:
    pod = mixed.pod("a", "2Gi")
    mixed.filter(pod)
    mixed.api.delete("/api/v1/nodes/free")
    await until(lambda: "free" not in mixed.engine.state.nodes, "node gone")
    assert mixed.prioritize(pod, ["gone", "full"])["gone"] == 0


# -- soft holds --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def pair(world: World) -> World:
    """Two equal nodes; holds that outlast the test."""
    world.node("n1")
    world.node("n2")
    await world.start()
    world.engine.holds.seconds = 60.0
    return world


def best(scores: dict[str, int]) -> str:
    return max(scores, key=lambda n: scores[n])


async def test_the_held_node_scores_a_little_more_than_its_equals(pair: World) -> None:
    pod = pair.pod("a")
    scores = pair.prioritize(pod, pair.filter(pod)["NodeNames"])
    assert scores["n1"] == scores["n2"] + BEST_BONUS


async def test_the_next_pod_of_a_burst_is_sent_where_there_is_room_beside_the_hold(pair: World) -> None:
    first, second = pair.pod("a", "10Gi"), pair.pod("b", "10Gi")
    assert best(pair.prioritize(first, pair.filter(first)["NodeNames"])) == "n1"
    answer = pair.filter(second)
    assert answer["NodeNames"] == ["n2"]
    assert answer["FailedNodes"] == {"n1": "node(s) without 10Gi free memory on one device (most free 4Gi)"}


async def test_a_hold_is_ignored_when_nothing_else_fits(pair: World) -> None:
    pods = [pair.pod(f"p{i}", "10Gi") for i in range(3)]
    assert [pair.filter(p)["NodeNames"] for p in pods] == [["n1", "n2"], ["n2"], ["n1", "n2"]]
    assert await pair.bind(pods[2], "n1") == ""
    assert "taken meanwhile" in await pair.bind(pods[0], "n1")
    assert await pair.bind(pods[1], "n2") == ""


async def test_a_hold_ends_with_the_bind_with_the_pod_and_after_its_time(pair: World) -> None:
    holds = pair.engine.holds
    bound, gone, again = pair.pod("a"), pair.pod("b"), pair.pod("c")
    for pod in (bound, gone, again):
        pair.filter(pod)
    await until(lambda: len(pair.engine.state.pods) == 3, "pods in the watch")
    assert len(holds) == 3
    await pair.bind(bound, "n2")
    pair.delete("b")
    await until(lambda: len(holds) == 1, "two holds ended")
    holds.seconds = 0.01
    pair.filter(again)
    await until(lambda: not len(holds), "the last hold ended")
    assert holds.node_of(again["metadata"]["uid"]) is None
    assert pair.engine.stats.holds["expired"] == 1


async def test_the_pods_of_a_burst_do_not_collide_at_bind(world: World) -> None:
    """Filters come one after the other and faster than the binds, as kube-scheduler sends them."""
    for i in range(8):
        world.node(f"n{i}")
    await world.start()
    world.api.faults.add("create", "*/binding", delay=0.02, times=None)
    binds: list[Any] = []
    for i in range(32):
        pod = world.pod(f"p{i}", "3Gi")
        names = world.filter(pod)["NodeNames"]
        binds.append(asyncio.create_task(world.bind(pod, best(world.prioritize(pod, names)))))
        await asyncio.sleep(0.002)
    assert set(await asyncio.gather(*binds)) == {""}
    assert world.engine.stats.bindings_posted == 32


async def test_a_reserved_place_is_kept_from_lower_priorities_and_not_from_higher_ones(pair: World) -> None:
    nominated = {"phase": "Pending", "nominatedNodeName": "n1"}
    chosen = pair.pod("chosen", "10Gi", spec={"priority": 100}, status=nominated)
    uid = chosen["metadata"]["uid"]
    await until(lambda: len(pair.engine.nominations), "reserved")
    lower, higher = pair.pod("lower", "10Gi"), pair.pod("higher", "10Gi", spec={"priority": 200})
    assert pair.filter(lower, ["n1"])["NodeNames"] == []
    await pair.seen()
    assert "taken meanwhile" in await pair.bind(lower, "n1")
    assert pair.filter(higher, ["n1"])["NodeNames"] == ["n1"]
    assert pair.filter(chosen, ["n1"])["NodeNames"] == ["n1"]
    assert await pair.bind(chosen, "n1") == ""
    await until(lambda: pair.engine.state.pods[uid].node, "bound")
    assert len(pair.engine.nominations) == 0
    assert pair.free("n1") == [4]


async def test_a_place_is_reserved_as_if_the_pods_on_their_way_out_were_gone(pair: World) -> None:
    text = '{"v":1,"containers":{"main":[{"device":"n1-0","memory":12884901888,"cores":0}]}}'
    pair.pod("victim", "12Gi", spec={"nodeName": "n1"}, annotations={"hamipy.io/allocation": text})
    pair.pod("chosen", "10Gi", spec={"priority": 100}, status={"nominatedNodeName": "n1"})
    await pair.seen()
    assert len(pair.engine.nominations) == 0
    pair.api.patch(f"{PODS}/victim", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    await until(lambda: len(pair.engine.nominations), "reserved")
    pair.delete("victim")
    await pair.seen()
    assert pair.filter(pair.pod("lower", "10Gi"), ["n1"])["NodeNames"] == []
    pair.delete("chosen")
    await pair.seen()
    assert pair.filter(pair.pod("later", "10Gi"), ["n1"])["NodeNames"] == ["n1"]


# -- preemption --------------------------------------------------------------------------------------------------------


async def test_preemption_keeps_only_nodes_on_which_the_victims_make_room(mixed: World) -> None:
    uid = mixed.engine.state.by_name["default", "x"]
    pod = mixed.pod("high", "12Gi", spec={"priority": 100})
    kept = mixed.preempt(pod, {"full": [uid], "small": ["unknown"], "sick": [], "nowhere": ["y"], "free": []})
    assert sorted(kept) == ["free", "full"]
    assert kept["full"] == {"Pods": [{"UID": uid}], "NumPDBViolations": 0}
    assert mixed.preempt(pod, {"full": ["unknown"]}) == {}
    assert mixed.preempt(pod, {}) == {}
    assert mixed.engine.stats.preemptions == {"kept": 2, "vetoed": 4}


async def test_preemption_leaves_pods_without_our_resources_alone_and_vetoes_unreadable_ones(mixed: World) -> None:
    assert list(mixed.preempt(mixed.pod("plain", limits={"cpu": "1"}), {"sick": ["a"]})) == ["sick"]
    assert mixed.preempt(mixed.pod("bad", limits={"hamipy.io/cores": "0"}), {"free": ["a"]}) == {}


async def test_preemption_with_whole_pods_is_answered_with_uids(mixed: World) -> None:
    victim = {"metadata": {"uid": mixed.engine.state.by_name["default", "x"], "name": "x"}}
    body = {"Pod": mixed.pod("high", "12Gi"), "NodeNameToVictims": {"full": {"Pods": [victim], "NumPDBViolations": 1}}}
    answer = msgspec.json.decode(mixed.engine.extender.preempt(msgspec.json.encode(body)).body)
    assert answer == {
        "NodeNameToMetaVictims": {"full": {"Pods": [{"UID": victim["metadata"]["uid"]}], "NumPDBViolations": 1}}
    }
