"""The MutatingWebhookConfiguration in an API server, as the chart makes it and as the leader keeps it."""

import asyncio
import base64
import copy
from typing import Any

import pytest

from hamipy.core.family import NEUTRAL, Families, Family, Meaning, Resource
from hamipy.kube.client import KubeClient
from hamipy.kube.errors import ApiError, NotFound
from hamipy.scheduler.webhookconfig import WebhookConfiguration, match_condition
from hamipy.testing.apiserver import InMemoryApiServer
from tests.component.scheduler.world import until

PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
NEUTRAL_TEXT = (
    "(object.spec.containers + object.spec.?initContainers.orValue([])).exists(c, [c.?resources.limits.orValue({}), "
    "c.?resources.requests.orValue({})].exists(m, m.exists(k, k.startsWith('hamipy.io/'))))"
)
OURS = {
    "name": "pods.hamipy.io",
    "clientConfig": {"service": {"name": "hamipy-webhook", "namespace": "hamipy-system"}},
    "matchConditions": [{"name": "mentions-our-resources", "expression": NEUTRAL_TEXT}],
    "timeoutSeconds": 5,
}
OTHER = {"name": "other.io", "clientConfig": {"url": "https://x", "caBundle": "b3RoZXI="}}
BUNDLE = b"-----BEGIN CERTIFICATE-----"
ENCODED = base64.b64encode(BUNDLE).decode()


def installed(api: InMemoryApiServer, *webhooks: dict[str, Any]) -> None:
    api.create(PATH, {"metadata": {"name": "hamipy"}, "webhooks": copy.deepcopy(list(webhooks))})


def there(api: InMemoryApiServer) -> list[dict[str, Any]]:
    webhooks: list[dict[str, Any]] = api.get(f"{PATH}/hamipy")["webhooks"]
    return webhooks


class Keeper:
    def __init__(self, client: KubeClient, families: Families | None = None, *, interval: float = 3600.0) -> None:
        self.leads, self.bundle = True, BUNDLE
        self.configuration = WebhookConfiguration(
            client,
            name="hamipy",
            families=families or Families(),
            bundle=lambda: self.bundle,
            leads=lambda: self.leads,
            interval=interval,
        )


def test_the_condition_of_the_neutral_family_is_the_charts() -> None:
    assert match_condition(Families()) == NEUTRAL_TEXT


def test_further_families_are_matched_by_domain_and_by_name() -> None:
    gpu = Family("acme.com", (Resource("acme.com/gpu", Meaning.COUNT), Resource("vendor.io/it's", Meaning.CORES)))

    text = match_condition(Families((NEUTRAL, gpu)))

    assert "k.startsWith('acme.com/') || k.startsWith('hamipy.io/') || k in ['vendor.io/it\\'s']" in text


@pytest.mark.parametrize("webhooks", [[OURS], [OTHER, OURS], [OURS, OTHER]])
async def test_only_what_differs_is_written(webhooks: list[dict[str, Any]]) -> None:
    async with InMemoryApiServer() as api, KubeClient(api.config()) as client:
        installed(api, *webhooks)
        keeper = Keeper(client)

        assert await keeper.configuration.ensure()
        assert not await keeper.configuration.ensure()

        expected = copy.deepcopy(webhooks)
        expected[webhooks.index(OURS)]["clientConfig"]["caBundle"] = ENCODED
        assert there(api) == expected
        assert keeper.configuration.in_place == BUNDLE
        assert keeper.configuration.writes == 1
        (patch,) = [r for r in api.requests if r.verb == "patch"]
        assert b"matchConditions" not in patch.body, "what is right already stays helm's"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, ["ours"]),
        ([{"name": "mentions-our-resources", "expression": "true"}], ["ours"]),
        ([{"name": "not-kube-system", "expression": "x"}], ["x", "ours"]),
        (
            [{"name": "not-kube-system", "expression": "x"}, {"name": "mentions-our-resources", "expression": "y"}],
            ["x", "ours"],
        ),
    ],
)
async def test_the_condition_is_put_right_beside_others(before: list[dict[str, str]] | None, after: list[str]) -> None:
    entry = {k: v for k, v in OURS.items() if k != "matchConditions"}
    async with InMemoryApiServer() as api, KubeClient(api.config()) as client:
        installed(api, {**entry, **({} if before is None else {"matchConditions": before})})

        await Keeper(client).configuration.ensure()

        expressions = [c["expression"] for c in there(api)[0]["matchConditions"]]
        assert expressions == [NEUTRAL_TEXT if e == "ours" else e for e in after]


async def test_without_a_bundle_of_ours_the_injectors_stays() -> None:
    async with InMemoryApiServer() as api, KubeClient(api.config()) as client:
        installed(api, {**OURS, "clientConfig": {"caBundle": "aW5qZWN0ZWQ="}})
        keeper = Keeper(client)
        keeper.configuration._bundle = lambda: None

        assert not await keeper.configuration.ensure()
        assert there(api)[0]["clientConfig"] == {"caBundle": "aW5qZWN0ZWQ="}


async def test_an_object_that_is_not_installed_is_never_created() -> None:
    async with InMemoryApiServer() as api, KubeClient(api.config()) as client:
        with pytest.raises(NotFound):
            await Keeper(client).configuration.ensure()
        installed(api, OTHER)
        with pytest.raises(ApiError, match=r"it has no entry pods\.hamipy\.io; install the chart again"):
            await Keeper(client).configuration.ensure()
        assert client.writes == {}


async def test_an_entry_that_moved_in_the_meantime_is_not_overwritten() -> None:
    async with InMemoryApiServer() as api, KubeClient(api.config()) as client:
        installed(api, OURS, OTHER)
        api.faults.add("patch", f"{PATH}/hamipy", delay=0.2)
        task = asyncio.create_task(Keeper(client).configuration.ensure())
        await until(lambda: any(r.verb == "patch" for r in api.requests), "the patch is on its way")
        api.patch(f"{PATH}/hamipy", {"webhooks": [OTHER, OURS]})

        with pytest.raises(ApiError):
            await task
        assert there(api) == [OTHER, OURS]


async def test_only_the_leader_keeps_it_right_and_goes_on_after_errors() -> None:
    async with InMemoryApiServer() as api, KubeClient(api.config()) as client:
        keeper = Keeper(client, interval=0.01)
        keeper.leads = False
        task = asyncio.create_task(keeper.configuration.run())
        try:
            installed(api, OURS)
            api.faults.add("get", f"{PATH}/hamipy", times=2, status=500)
            keeper.leads = True
            await until(lambda: there(api)[0]["clientConfig"].get("caBundle") == ENCODED, "the bundle")

            api.patch(f"{PATH}/hamipy", {"webhooks": [OURS]})  # somebody takes it away
            await until(lambda: there(api)[0]["clientConfig"].get("caBundle") == ENCODED, "the bundle again")
        finally:
            task.cancel()


async def test_a_change_is_written_at_once() -> None:
    async with InMemoryApiServer() as api, KubeClient(api.config()) as client:
        installed(api, OURS)
        keeper = Keeper(client)
        task = asyncio.create_task(keeper.configuration.run())
        try:
            await until(lambda: keeper.configuration.in_place == BUNDLE, "the first bundle")
            keeper.bundle = b"another"
            keeper.configuration.look()
            await until(lambda: keeper.configuration.in_place == b"another", "the second bundle")
        finally:
            task.cancel()
