"""What the webhook makes of a pod, and how it is asked."""

from typing import Any

import pytest

from hamipy.scheduler.app import webhook_app
from hamipy.scheduler.webhook import Webhook
from tests.unit.scheduler.asgi import Answer, call
from tests.unit.scheduler.reviews import JSON, OURS, ask, container, patched, pod, review

# -- completing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ({"device": "2"}, {"device": "2"}),
        ({"memory": "8Gi"}, {"memory": "8Gi", "device": "1", "memory-total": "8589934592"}),
        ({"memory": "1Gi", "device": "3"}, {"memory": "1Gi", "device": "3", "memory-total": "3221225472"}),
        ({"memory_percentage": "50"}, {"memory-percentage": "50", "device": "1"}),
        ({"cores": "30"}, {"cores": "30", "device": "1", "memory-percentage": "30"}),
        (
            {"memory": "1Gi", "cores": "30"},
            {"memory": "1Gi", "cores": "30", "device": "1", "memory-total": "1073741824"},
        ),
        ({"memory_percentage": "20", "cores": "30"}, {"memory-percentage": "20", "cores": "30", "device": "1"}),
    ],
)
async def test_a_request_is_completed_in_limits_and_requests_alike(
    webhook: Webhook, asked: dict[str, str], got: dict[str, str]
) -> None:
    obj = pod(container(**asked), schedulerName="default-scheduler")

    after = patched(obj, await ask(webhook, obj))

    resources = after["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == {f"hamipy.io/{k}": v for k, v in got.items()}
    assert after["spec"]["schedulerName"] == OURS


async def test_every_container_is_completed_and_the_others_stay_as_they_are(webhook: Webhook) -> None:
    plain = container("plain")
    cpu = {"name": "cpu", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}
    sidecar = {**container("proxy", cores="10"), "restartPolicy": "Always"}
    obj = pod(plain, container("main", memory="1Gi"), cpu, initContainers=[container("load", device="1"), sidecar])

    after = patched(obj, await ask(webhook, obj))

    limits = {
        c["name"]: c["resources"].get("limits") for c in after["spec"]["initContainers"] + after["spec"]["containers"]
    }
    assert limits == {
        "load": {"hamipy.io/device": "1"},
        "proxy": {"hamipy.io/cores": "10", "hamipy.io/device": "1", "hamipy.io/memory-percentage": "10"},
        "plain": None,
        "main": {"hamipy.io/memory": "1Gi", "hamipy.io/device": "1", "hamipy.io/memory-total": "1073741824"},
        "cpu": {"cpu": "1"},
    }


async def test_limits_without_requests_get_both(webhook: Webhook) -> None:
    obj = pod({"name": "main", "resources": {"limits": {"hamipy.io/memory": "1Gi"}}})

    resources = patched(obj, await ask(webhook, obj))["spec"]["containers"][0]["resources"]

    assert resources["limits"]["hamipy.io/device"] == resources["requests"]["hamipy.io/device"] == "1"


async def test_a_number_is_as_good_as_text(webhook: Webhook) -> None:
    obj = pod(container(device=2, cores=50))

    limits = patched(obj, await ask(webhook, obj))["spec"]["containers"][0]["resources"]["limits"]

    assert limits == {"hamipy.io/device": 2, "hamipy.io/cores": 50, "hamipy.io/memory-percentage": "50"}


@pytest.mark.parametrize("asked", [{"memory": "8Gi"}, {"cores": "30"}, {"device": "2"}, {"memory_percentage": "5"}])
async def test_a_completed_pod_is_left_alone_when_it_comes_again(webhook: Webhook, asked: dict[str, str]) -> None:
    obj = pod(container(**asked), initContainers=[container("load", **asked)])
    once = patched(obj, await ask(webhook, obj))

    again = await ask(webhook, once)

    assert again == {"uid": "705ab4f5", "allowed": True}
    assert webhook.outcomes == {"completed": 1, "complete": 1}


async def test_a_dry_run_gets_the_same_answer(webhook: Webhook) -> None:
    obj = pod(container(memory="8Gi"))

    assert await ask(webhook, obj, dryRun=True) == await ask(webhook, obj)


@pytest.mark.parametrize("name", ["", "default-scheduler", None])
async def test_the_scheduler_is_set_where_the_author_named_none(webhook: Webhook, name: str | None) -> None:
    obj = pod(container(device="1"))
    if name is not None:
        obj["spec"]["schedulerName"] = name

    assert patched(obj, await ask(webhook, obj))["spec"]["schedulerName"] == OURS


# -- leaving alone -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "obj",
    [
        pod(container()),
        pod({"name": "main"}),
        pod({"name": "main", "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}}, schedulerName="volcano"),
        pod({"name": "main", "resources": {"limits": {"nothamipy.io/device": "1", "hamipy.iox/a": "-1"}}}),
        pod(
            {"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
            nodeName="n1",
            annotations={"hamipy.io/allocation": "{}"},
        ),
    ],
)
async def test_a_pod_without_our_resources_is_left_alone(webhook: Webhook, obj: dict[str, Any]) -> None:
    assert await ask(webhook, obj) == {"uid": "705ab4f5", "allowed": True}
    assert webhook.outcomes == {"untouched": 1}


@pytest.mark.parametrize("request_", [{"operation": "UPDATE"}, {"operation": "DELETE"}, {"subResource": "resize"}])
async def test_only_creation_is_looked_at(webhook: Webhook, request_: dict[str, str]) -> None:
    response = await ask(webhook, pod(container(device="-1")), **request_)

    assert response == {"uid": "705ab4f5", "allowed": True}


# -- the way in ----------------------------------------------------------------------------------------------------


async def post(webhook: Webhook, body: bytes | list[bytes], content_type: str | None = "application/json") -> Answer:
    headers = {} if content_type is None else {"Content-Type": content_type}
    return await call(webhook_app(webhook), "POST", "/mutate", body, headers=headers)


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON; charset=utf-8"])
async def test_json_is_taken(webhook: Webhook, content_type: str) -> None:
    assert (await post(webhook, review(pod(container())), content_type)).status == 200


@pytest.mark.parametrize("content_type", ["application/yaml", "text/plain", "", None])
async def test_another_content_type_is_refused(webhook: Webhook, content_type: str | None) -> None:
    answer = await post(webhook, review(pod(container())), content_type)

    assert (answer.status, answer.text) == (415, f"Content-Type: {content_type or ''!r}: must be application/json")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "body: not an AdmissionReview in JSON: Input data was truncated"),
        (review(pod(container()))[:200], "body: not an AdmissionReview in JSON: Input data was truncated"),
        (b"\xff\xfe", "body: not an AdmissionReview in JSON: JSON is malformed: invalid character (byte 0)"),
        (b"[]", "body: not an AdmissionReview in JSON: Expected `object`, got `array`"),
        (b"{}", "apiVersion, kind: '', '': must be admission.k8s.io/v1 AdmissionReview"),
        (
            b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"}',
            "apiVersion, kind: 'admission.k8s.io/v1beta1', 'AdmissionReview': must be admission.k8s.io/v1 "
            "AdmissionReview",
        ),
        (
            b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}',
            "request.uid: missing: an AdmissionReview carries the request that it asks about",
        ),
        (review(None), "request.object: not a Pod: Expected `object`, got `null`"),
        (review([]), "request.object: not a Pod: Expected `object`, got `array`"),
        (
            review({"spec": {"containers": [{"name": 7}]}}),
            "request.object: not a Pod: Expected `str`, got `int` - at `$.spec.containers[0].name`",
        ),
        (
            review({"spec": {"containers": [{"name": "a", "resources": {"limits": {"hamipy.io/device": []}}}]}}),
            "request.object: not a Pod: Expected `int | float | str`, got `array` - at "
            "`$.spec.containers[0].resources.limits[...]`",
        ),
        (
            review({}, kind={"kind": "Deployment"}),
            "request.kind.kind: 'Deployment': this webhook reviews pods only",
        ),
    ],
)
async def test_a_malformed_review_is_a_bad_request_with_one_sentence(
    webhook: Webhook, body: bytes, sentence: str
) -> None:
    answer = await post(webhook, body)

    assert (answer.status, answer.text) == (400, sentence)
    assert webhook.outcomes == {"malformed": 1}


async def test_json_nested_beyond_reason_is_a_bad_request(webhook: Webhook) -> None:
    assert (await post(webhook, b'{"request":' + b"[" * 100_000)).status == 400


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_above_three_mebibytes_is_not_read(webhook: Webhook, announced: bool) -> None:
    chunks = [b" " * 2**20] * 4

    answer = await call(webhook_app(webhook), "POST", "/mutate", chunks, headers=JSON, announce=announced)

    assert (answer.status, answer.text) == (413, "body: more than 3145728 bytes: send at most that")


async def test_a_large_pod_within_the_limit_is_reviewed(webhook: Webhook) -> None:
    obj = pod(*(container(f"c{i}", memory="1Gi") for i in range(60)), annotations={"other.io/text": "x" * 2_000_000})

    assert (await ask(webhook, obj))["allowed"]


async def test_only_post_mutates_and_health_is_told(webhook: Webhook) -> None:
    app = webhook_app(webhook)

    assert (await call(app, "GET", "/mutate")).status == 405
    assert (await call(app, "POST", "/", b"{}", headers=JSON)).status == 404
    assert (await call(app, "GET", "/healthz")).status == 200
