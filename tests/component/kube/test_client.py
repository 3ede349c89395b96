"""Requests against a server that refuses, fails, stalls and forgets to answer."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from hamipy.kube.client import KubeClient
from hamipy.kube.config import ClusterConfig
from hamipy.kube.errors import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    InvalidResponse,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from hamipy.kube.objects import Node, Pod
from hamipy.kube.transport import resource_of
from hamipy.testing.apiserver import InMemoryApiServer

from .conftest import PODS, pod

IN_DEFAULT = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def stalled() -> AsyncIterator[str]:
    """A server that accepts and never answers."""
    open_connections: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.append(writer)
        await reader.read()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    for writer in open_connections:
        writer.close()


async def test_an_object_is_created_read_changed_and_deleted(api: InMemoryApiServer, client: KubeClient) -> None:
    await client.create(IN_DEFAULT, pod("a"))
    await client.merge_patch(f"{IN_DEFAULT}/a", {"metadata": {"annotations": {"x": "1"}}})
    read = await client.get(f"{IN_DEFAULT}/a", Pod)
    assert read.metadata.annotations == {"x": "1"}
    await client.delete(f"{IN_DEFAULT}/a", uid=read.metadata.uid, grace_period=0)
    with pytest.raises(NotFound):
        await client.get(f"{IN_DEFAULT}/a", Pod)
    assert client.writes == {"create pods": 1, "patch pods": 1, "delete pods": 1}


async def test_each_refusal_is_raised_as_its_class(api: InMemoryApiServer, client: KubeClient) -> None:
    await client.create(IN_DEFAULT, pod("a"))
    with pytest.raises(Conflict, match="AlreadyExists"):
        await client.create(IN_DEFAULT, pod("a"))
    with pytest.raises(Invalid):
        await client.create(IN_DEFAULT, {"metadata": {}})
    with pytest.raises(Conflict):
        await client.delete(f"{IN_DEFAULT}/a", uid="another")
    with pytest.raises(NotFound):
        await client.get("/apis/example.org/v1/things/x", Pod)
    api.authorize = lambda verb, path, token: False
    with pytest.raises(Forbidden):
        await client.get(f"{IN_DEFAULT}/a", Pod)
    api.tokens = set()
    with pytest.raises(Unauthorized):
        await client.get(f"{IN_DEFAULT}/a", Pod)


async def test_a_binding_assigns_node_and_annotations_in_one_request(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    uid = api.create(IN_DEFAULT, pod("a"))["metadata"]["uid"]
    await client.bind("default", "a", uid, "n1", {"hamipy.io/allocation": "{}"}, timeout=5)
    bound = await client.get(f"{IN_DEFAULT}/a", Pod)
    assert bound.spec.node_name == "n1"
    assert bound.metadata.annotations == {"hamipy.io/allocation": "{}"}
    assert client.writes == {"create pods/binding": 1}


async def test_a_second_binding_and_one_for_another_uid_conflict(api: InMemoryApiServer, client: KubeClient) -> None:
    uid = api.create(IN_DEFAULT, pod("a"))["metadata"]["uid"]
    with pytest.raises(Conflict, match="UID in precondition"):
        await client.bind("default", "a", "another", "n1", {}, timeout=5)
    await client.bind("default", "a", uid, "n1", {}, timeout=5)
    with pytest.raises(Conflict, match="already assigned"):
        await client.bind("default", "a", uid, "n1", {}, timeout=5)


async def test_an_answer_lost_after_the_commit_may_have_been_executed_and_is_sent_once(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    uid = api.create(IN_DEFAULT, pod("a"))["metadata"]["uid"]
    await client.get(f"{IN_DEFAULT}/a", Pod)  # so that the connection is one that was used before
    api.faults.add("create", "*/binding", drop="after")
    with pytest.raises(Unreachable) as caught:
        await client.bind("default", "a", uid, "n1", {}, timeout=5)
    assert caught.value.sent
    assert api.get(f"{IN_DEFAULT}/a")["spec"]["nodeName"] == "n1"
    assert [r.path for r in api.requests if r.verb == "create"] == [f"{IN_DEFAULT}/a/binding"]


async def test_too_many_requests_is_waited_out(api: InMemoryApiServer, client: KubeClient) -> None:
    api.faults.add("create", status=429, retry_after=0, times=3)
    await client.create(IN_DEFAULT, pod("a"))
    assert client.writes == {"create pods": 4}


async def test_a_wait_beyond_the_timeout_is_not_begun(api: InMemoryApiServer, client: KubeClient) -> None:
    api.faults.add("create", status=429, retry_after=60, times=None)
    with pytest.raises(TooManyRequests) as caught:
        await client.create(IN_DEFAULT, pod("a"), timeout=5)
    assert caught.value.retry_after == 60
    assert len(api.requests) == 1


async def test_a_server_error_is_raised_and_not_repeated(api: InMemoryApiServer, client: KubeClient) -> None:
    api.faults.add(status=500)
    with pytest.raises(ServerError):
        await client.create(IN_DEFAULT, pod("a"))
    assert len(api.requests) == 1


async def test_no_answer_in_time_is_unreachable(stalled: str) -> None:
    async with KubeClient(ClusterConfig(server=stalled)) as client:
        with pytest.raises(Unreachable, match="timed out") as caught:
            await client.get("/api/v1/nodes/n", Node, timeout=0.05)
    assert caught.value.sent


async def test_nobody_there_is_unreachable_and_surely_not_executed(api: InMemoryApiServer, client: KubeClient) -> None:
    await api.pause()
    with pytest.raises(Unreachable) as caught:
        await client.create(IN_DEFAULT, pod("a"))
    assert not caught.value.sent
    await api.resume()
    await client.create(IN_DEFAULT, pod("a"))


async def test_an_answer_of_another_shape_is_refused(api: InMemoryApiServer, client: KubeClient) -> None:
    api.create(IN_DEFAULT, {**pod("a"), "spec": []})
    with pytest.raises(InvalidResponse, match=r"spec"):
        await client.get(f"{IN_DEFAULT}/a", Pod)


async def test_a_list_comes_in_pages_of_one_moment(api: InMemoryApiServer, client: KubeClient) -> None:
    api.preload(PODS, [pod(f"p{i:03}") for i in range(25)])
    names: list[str] = []
    versions: set[str] = set()
    sizes: list[tuple[int, bool]] = []
    async for page in client.pages(PODS, Pod, limit=10):
        api.create(IN_DEFAULT, pod(f"q{len(sizes)}"))
        names += [p.metadata.name for p in page.items]
        versions.add(page.resource_version)
        sizes.append((len(page.items), page.more))
    assert names == [f"p{i:03}" for i in range(25)]
    assert sizes == [(10, True), (10, True), (5, False)]
    assert len(versions) == 1


async def test_a_list_whose_moment_is_forgotten_is_gone(api: InMemoryApiServer, client: KubeClient) -> None:
    api.preload(PODS, [pod(f"p{i}") for i in range(5)])
    pages = client.pages(PODS, Pod, limit=2)
    await anext(pages)
    api.compact()
    with pytest.raises(Gone):
        await anext(pages)


async def test_a_watch_delivers_from_its_version_on(api: InMemoryApiServer, client: KubeClient) -> None:
    first = api.create(IN_DEFAULT, pod("a"))
    api.create(IN_DEFAULT, pod("b"))
    api.delete(f"{IN_DEFAULT}/a")
    watch = client.watch(PODS, Pod, resource_version=first["metadata"]["resourceVersion"])
    seen = [(e.type, e.object.metadata.name) for e in [await anext(watch), await anext(watch)]]
    await watch.aclose()
    assert seen == [("ADDED", "b"), ("DELETED", "a")]


async def test_a_watch_from_a_forgotten_version_is_gone(api: InMemoryApiServer, client: KubeClient) -> None:
    old = str(api.resource_version)
    api.create(IN_DEFAULT, pod("a"))
    api.compact()
    with pytest.raises(Gone):
        await anext(client.watch(PODS, Pod, resource_version=old))
    api.faults.add("watch", status=410)
    with pytest.raises(Gone):
        await anext(client.watch(PODS, Pod, resource_version=str(api.resource_version)))


async def test_a_client_outside_of_its_context_is_a_mistake(api: InMemoryApiServer) -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await KubeClient(api.config()).get("/api/v1/nodes", _Anything)


def test_the_resource_of_a_path_is_named_with_its_subresource() -> None:
    assert resource_of("/api/v1/namespaces/a/pods/b/binding") == "pods/binding"
    assert resource_of("/api/v1/namespaces/a/pods") == "pods"
    assert resource_of("/api/v1/nodes/n/status") == "nodes/status"
    assert resource_of("/api/v1/namespaces/a") == "namespaces"
    assert resource_of("/apis/hamipy.io/v1alpha1/nodedevices/n") == "nodedevices"


_Anything = dict[str, object]
