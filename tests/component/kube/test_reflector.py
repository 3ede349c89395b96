"""List and watch against a server that cuts, forgets, stalls, lies and dies."""

import asyncio

import pytest

from hamipy.kube.client import KubeClient
from hamipy.kube.errors import KubeError
from hamipy.kube.objects import Pod
from hamipy.kube.reflector import Reflector
from hamipy.testing.apiserver import InMemoryApiServer

from .conftest import PODS, CountingBackoff, Seen, eventually, pod, running

IN_DEFAULT = "/api/v1/namespaces/default/pods"


def truth(api: InMemoryApiServer) -> dict[str, str]:
    return {p["metadata"]["name"]: p["metadata"]["resourceVersion"] for p in api.list(PODS)}


def requests(api: InMemoryApiServer, verb: str) -> list[dict[str, str]]:
    return [dict(r.query) for r in api.requests if r.verb == verb]


async def test_a_list_then_every_change(api: InMemoryApiServer, client: KubeClient) -> None:
    api.create(IN_DEFAULT, pod("a"))
    seen = Seen()
    async with running(client, seen) as reflector:
        api.create(IN_DEFAULT, pod("b"))
        api.patch(f"{IN_DEFAULT}/a", {"metadata": {"labels": {"x": "y"}}})
        api.delete(f"{IN_DEFAULT}/b")
        await eventually(lambda: reflector.events == 3)
        assert seen.calls == [("replace", ["a"]), ("upsert", "b"), ("upsert", "a"), ("remove", "b")]
        assert (reflector.lists, reflector.watches, reflector.errors) == (1, 1, 0)
        assert reflector.synced
    assert not reflector.watching


async def test_pages_become_one_list_and_nothing_between_them_is_missed(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    api.preload(PODS, [pod(f"p{i:02}") for i in range(25)])
    slow = api.faults.add("list", query={"continue": "*"}, delay=0.05, times=None)
    seen = Seen()
    async with running(client, seen, page_size=10, synced=False) as reflector:
        await eventually(lambda: slow.hits)
        api.create(IN_DEFAULT, pod("late"))
        await eventually(lambda: seen.now == truth(api))
        assert seen.calls == [("replace", [f"p{i:02}" for i in range(25)]), ("upsert", "late")]
        assert reflector.lists == 1


async def test_what_leaves_the_selection_is_removed(api: InMemoryApiServer, client: KubeClient) -> None:
    for name in ("a", "b"):
        api.create(IN_DEFAULT, pod(name, nodeName="n1"))
    api.create(IN_DEFAULT, pod("c", nodeName="n2"))
    seen = Seen()
    async with running(client, seen, field_selector="spec.nodeName=n1", label_selector="!gone"):
        assert sorted(seen.now) == ["a", "b"]
        api.patch(f"{IN_DEFAULT}/a", {"metadata": {"labels": {"gone": ""}}})
        api.create(IN_DEFAULT, pod("d", nodeName="n1"))
        await eventually(lambda: sorted(seen.now) == ["b", "d"])


@pytest.mark.parametrize("in_next_event", [False, True])
async def test_a_watch_that_is_cut_resumes_where_it_stopped(
    api: InMemoryApiServer, client: KubeClient, in_next_event: bool
) -> None:
    """Also in the middle of a line: half an event is none, and comes again."""
    seen = Seen()
    async with running(client, seen) as reflector:
        assert api.cut_watches(in_next_event=in_next_event) == 1
        for name in ("a", "b", "c"):
            api.create(IN_DEFAULT, pod(name))
        await eventually(lambda: seen.now == truth(api))
        assert seen.calls == [("replace", []), ("upsert", "a"), ("upsert", "b"), ("upsert", "c")]
        assert reflector.lists == 1
        assert reflector.watches == 2


async def test_a_watch_that_ends_in_time_resumes_where_it_stopped(api: InMemoryApiServer, client: KubeClient) -> None:
    seen = Seen()
    async with running(client, seen) as reflector:
        api.end_watches()
        api.create(IN_DEFAULT, pod("a"))
        await eventually(lambda: seen.now == truth(api))
        assert (reflector.lists, reflector.errors) == (1, 0)


async def test_a_forgotten_version_is_listed_again(api: InMemoryApiServer, client: KubeClient) -> None:
    api.create(IN_DEFAULT, pod("a"))
    seen = Seen()
    async with running(client, seen) as reflector:
        await api.pause()
        api.create(IN_DEFAULT, pod("b"))
        api.delete(f"{IN_DEFAULT}/a")
        api.compact()
        await api.resume()
        await eventually(lambda: seen.now == truth(api))
        assert seen.calls == [("replace", ["a"]), ("replace", ["b"])]
        assert reflector.lists == 2


async def test_an_error_event_of_another_kind_resumes_without_a_list(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    seen = Seen()
    async with running(client, seen) as reflector:
        api.fail_watches(code=500, message="etcd leader changed")
        api.create(IN_DEFAULT, pod("a"))
        await eventually(lambda: seen.now == truth(api))
        assert reflector.lists == 1
        assert reflector.errors == 1


async def test_410_in_the_middle_of_paging_begins_again(api: InMemoryApiServer, client: KubeClient) -> None:
    api.preload(PODS, [pod(f"p{i:02}") for i in range(25)])
    api.faults.add("list", query={"continue": "*"}, status=410, times=1)
    seen = Seen()
    async with running(client, seen, page_size=10) as reflector:
        assert seen.now == truth(api)
        assert reflector.lists == 1
    assert [("continue" in q, q["limit"]) for q in requests(api, "list")] == [
        (False, "10"),
        (True, "10"),
        (False, "10"),
        (True, "10"),
        (True, "10"),
    ]


async def test_410_while_paging_again_and_again_ends_in_one_list_without_pages(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    api.preload(PODS, [pod(f"p{i:02}") for i in range(25)])
    api.faults.add("list", query={"continue": "*"}, status=410, times=None)
    seen = Seen()
    async with running(client, seen, page_size=10):
        assert seen.now == truth(api)
    assert "limit" not in requests(api, "list")[-1]


async def test_a_version_from_the_future_is_given_up_when_nothing_comes() -> None:
    """An API server on an etcd restored from a backup counts from an earlier version, and keeps silent."""
    before = InMemoryApiServer()
    for name in "abcdefgh":
        before.create(IN_DEFAULT, pod(name))
    seen = Seen()
    async with before:
        port = int(before.url.rpartition(":")[2])
        async with KubeClient(before.config()) as client, running(client, seen, idle_timeout=0.1) as reflector:
            await before.pause()
            async with InMemoryApiServer(port=port, bookmark_every=0.02) as restored:
                restored.create(IN_DEFAULT, pod("old"))
                await eventually(lambda: seen.now == truth(restored))
                assert reflector.lists >= 2


async def test_a_version_that_is_refused_again_and_again_is_given_up(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    seen = Seen()
    async with running(client, seen) as reflector:
        api.faults.add("watch", status=504, times=3)
        api.cut_watches()
        await eventually(lambda: reflector.lists == 2)


async def test_a_server_that_ends_every_watch_at_once_is_not_hammered(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    endless = api.faults.add("watch", close=True, times=None)
    backoff = CountingBackoff()
    async with running(client, Seen(), backoff=backoff, synced=False) as reflector:
        await eventually(lambda: endless.hits >= 10)
        assert backoff.waits >= endless.hits - 1
        assert backoff.attempts == backoff.waits, "delays must keep growing"
        assert reflector.lists == 1


async def test_a_server_that_answers_410_to_every_watch_is_not_hammered(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    endless = api.faults.add("watch", status=410, times=None)
    backoff = CountingBackoff()
    async with running(client, Seen(), backoff=backoff, synced=False) as reflector:
        await eventually(lambda: endless.hits >= 10)
        assert backoff.waits >= reflector.lists - 1
        assert backoff.attempts == backoff.waits, "delays must keep growing"


async def test_a_quiet_watch_lives_on_bookmarks_and_resumes_from_them() -> None:
    """Nothing of ours changes, everything else does, and the server forgets: the bookmark's version still serves."""
    async with (
        InMemoryApiServer(bookmark_every=0.02) as api,
        KubeClient(api.config()) as client,
        running(client, Seen()) as reflector,
    ):
        for i in range(5):
            api.create("/api/v1/nodes", {"metadata": {"name": f"n{i}"}})
        api.compact()
        await eventually(lambda: reflector.resource_version == str(api.resource_version))
        api.cut_watches()
        await eventually(lambda: reflector.watches == 2)
        assert reflector.lists == 1
        assert reflector.events == 0


async def test_a_silent_connection_is_given_up() -> None:
    async with InMemoryApiServer(bookmark_every=None) as api, KubeClient(api.config()) as client:
        seen = Seen()
        async with running(client, seen, idle_timeout=0.05) as reflector:
            await eventually(lambda: reflector.watches >= 3)
            assert reflector.lists >= 3, "silence is no news to resume from"
            api.create(IN_DEFAULT, pod("a"))
            await eventually(lambda: seen.now == truth(api))


async def test_contact_is_kept_by_bookmarks_alone() -> None:
    async with (
        InMemoryApiServer(bookmark_every=0.02) as api,
        KubeClient(api.config()) as client,
        running(client, Seen()) as reflector,
    ):
        first = reflector.last_contact
        await eventually(lambda: reflector.last_contact > first)


async def test_an_object_of_more_than_two_mebibytes_passes_list_and_watch(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    huge = {"metadata": {"annotations": {"blob": "x" * (3 << 20)}}}
    api.create(IN_DEFAULT, {**pod("a"), "metadata": {**pod("a")["metadata"], **huge["metadata"]}})
    seen = Seen()
    async with running(client, seen) as reflector:
        api.create(IN_DEFAULT, pod("b"))
        api.patch(f"{IN_DEFAULT}/b", huge)
        api.create(IN_DEFAULT, pod("c"))
        await eventually(lambda: seen.now == truth(api))
        assert reflector.errors == 0


async def test_lists_that_fail_are_tried_again(api: InMemoryApiServer, client: KubeClient) -> None:
    api.create(IN_DEFAULT, pod("a"))
    api.faults.add("list", status=500, times=2)
    api.faults.add("list", drop="before", times=3)
    api.faults.add("list", status=429, retry_after=0, times=1)
    seen = Seen()
    async with running(client, seen) as reflector:
        assert seen.now == truth(api)
        assert reflector.errors >= 2


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_server_that_asks_to_wait_is_given_the_time(
    api: InMemoryApiServer, client: KubeClient, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    real = asyncio.sleep

    async def sleep(delay: float) -> None:
        waits.append(delay)
        await real(min(delay, 0.01))

    api.faults.add(verb, status=503, retry_after=7)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    async with running(client, Seen()):
        assert any(7 <= wait < 8 for wait in waits)


async def test_a_dead_server_is_awaited_and_nothing_is_missed(api: InMemoryApiServer, client: KubeClient) -> None:
    seen = Seen()
    async with running(client, seen) as reflector:
        await api.pause()
        await eventually(lambda: reflector.errors >= 3)
        assert not reflector.watching
        api.create(IN_DEFAULT, pod("a"))
        await api.resume()
        await eventually(lambda: seen.now == truth(api))
        assert reflector.lists == 1


async def test_a_malformed_object_hides_no_other(api: InMemoryApiServer, client: KubeClient) -> None:
    api.create(IN_DEFAULT, {**pod("odd"), "spec": []})
    api.create(IN_DEFAULT, pod("a"))
    seen = Seen()
    async with running(client, seen) as reflector:
        api.create(IN_DEFAULT, {**pod("odd2"), "spec": []})
        api.create(IN_DEFAULT, pod("b"))
        await eventually(lambda: sorted(seen.now) == ["a", "b"])
        assert reflector.malformed == 2


async def test_a_relist_contains_what_was_written_before_it_was_asked_for(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    seen = Seen()
    async with running(client, seen) as reflector:
        api.cut_watches()
        api.faults.add("watch", status=500, times=None)
        api.create(IN_DEFAULT, pod("a"))
        await reflector.relist()
        assert seen.now == truth(api)
        assert "resourceVersion" not in requests(api, "list")[-1]


async def test_a_relist_asked_for_during_a_list_waits_for_the_next_one(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    seen = Seen()
    async with running(client, seen) as reflector:
        slow = api.faults.add("list", delay=0.1)
        first = asyncio.create_task(reflector.relist())
        await eventually(lambda: slow.hits)
        second = asyncio.create_task(reflector.relist())
        third = asyncio.create_task(reflector.relist())
        await first
        assert not second.done()
        await asyncio.gather(second, third)
        assert reflector.lists == 3


async def test_a_relist_survives_lists_that_fail(api: InMemoryApiServer, client: KubeClient) -> None:
    async with running(client, Seen()) as reflector:
        api.faults.add("list", status=503, times=3)
        await reflector.relist()
        assert reflector.lists == 2


async def test_a_relist_nobody_waits_for_any_more_harms_nobody(api: InMemoryApiServer, client: KubeClient) -> None:
    async with running(client, Seen()) as reflector:
        slow = api.faults.add("list", delay=0.05)
        impatient = asyncio.create_task(reflector.relist())
        await eventually(lambda: slow.hits)
        impatient.cancel()
        await reflector.relist()
        assert reflector.lists == 3


async def test_whoever_waits_is_told_that_the_reflector_has_ended(api: InMemoryApiServer, client: KubeClient) -> None:
    api.faults.add("list", status=500, times=None)
    reflector: Reflector[Pod] = Reflector(client, PODS, Pod, Seen(), name="pods", backoff=CountingBackoff())
    running_task = asyncio.create_task(reflector.run())
    waiting = asyncio.create_task(reflector.relist())
    await eventually(lambda: reflector.errors)
    running_task.cancel()
    with pytest.raises(KubeError, match="has ended"):
        await waiting
    with pytest.raises(asyncio.CancelledError):
        await running_task


async def test_a_handler_that_raises_ends_the_reflector(api: InMemoryApiServer, client: KubeClient) -> None:
    class Broken(Seen):
        def upsert(self, item: Pod) -> None:
            raise LookupError(item.metadata.name)

    reflector: Reflector[Pod] = Reflector(client, PODS, Pod, Broken(), name="pods")
    task = asyncio.create_task(reflector.run())
    await reflector.wait_synced()
    api.create(IN_DEFAULT, pod("a"))
    with pytest.raises(LookupError):
        await task
