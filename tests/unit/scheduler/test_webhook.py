"""What the webhook makes of a pod."""

import base64
import copy
from typing import Any

import msgspec
import pytest

from hamipy.core.family import Families
from hamipy.scheduler.app import webhook_app
from hamipy.scheduler.webhook import Webhook
from hamipy.testing._patches import json_patch
from tests.unit.scheduler.asgi import Answer, call

OURS = "hamipy-scheduler"
JSON = {"Content-Type": "application/json"}


def container(name: str = "main", **limits: object) -> dict[str, Any]:
    """A container that asks for hamipy.io/<name> with `_` for `-`."""
    amounts = {f"hamipy.io/{k.replace('_', '-')}": v for k, v in limits.items()}
    return {"name": name, "image": "i", "resources": {"limits": amounts, "requests": dict(amounts)} if limits else {}}


def pod(*containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "web-", "creationTimestamp": None, "annotations": annotations or {}},
        "spec": {"containers": list(containers), **spec},
    }


def review(obj: Any, **request: Any) -> bytes:
    return msgspec.json.encode(
        {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": "705ab4f5",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "operation": "CREATE",
                "namespace": "team",
                "userInfo": {"username": "anna"},
                "object": obj,
                "oldObject": None,
                "dryRun": False,
                **request,
            },
        }
    )


@pytest.fixture
def webhook() -> Webhook:
    return Webhook(Families(), scheduler_name=OURS)


async def ask(webhook: Webhook, obj: Any, **request: Any) -> dict[str, Any]:
    answer = await call(webhook_app(webhook), "POST", "/mutate", review(obj, **request), headers=JSON)
    assert answer.status == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["kind"] == "AdmissionReview"
    assert answer.json["apiVersion"] == "admission.k8s.io/v1"
    response: dict[str, Any] = answer.json["response"]
    assert response["uid"] == "705ab4f5"
    return response


def patched(obj: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """The pod as the API server makes it of the answer."""
    assert response["allowed"], response
    if "patch" not in response:
        return obj
    assert response["patchType"] == "JSONPatch"
    operations = msgspec.json.decode(base64.b64decode(response["patch"]))
    result: dict[str, Any] = json_patch(copy.deepcopy(obj), operations)
    return result


async def refusal(webhook: Webhook, obj: dict[str, Any]) -> tuple[int, str, str]:
    response = await ask(webhook, obj)
    assert not response["allowed"]
    assert "patch" not in response
    status = response["status"]
    return status["code"], status["reason"], status["message"]


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


# -- refusing ------------------------------------------------------------------------------------------------------

LIMITS = "container main resources.limits"


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"device": "0"}, f"{LIMITS}[hamipy.io/device]: '0': must be 1..1024"),
        ({"device": "-1"}, f"{LIMITS}[hamipy.io/device]: '-1': must be 1..1024"),
        ({"device": "2000"}, f"{LIMITS}[hamipy.io/device]: '2000': must be 1..1024"),
        (
            {"device": "500m"},
            f"{LIMITS}[hamipy.io/device]: '500m': must be a whole Kubernetes quantity: '500m' is not a whole number",
        ),
        (
            {"device": "two"},
            f"{LIMITS}[hamipy.io/device]: 'two': must be a whole Kubernetes quantity: "
            "'two' is not a Kubernetes quantity such as 3, 500m or 8Gi",
        ),
        (
            {"memory": "1e30"},
            f"{LIMITS}[hamipy.io/memory]: '1e30': must be a whole Kubernetes quantity: '1e30' is beyond 64 bits",
        ),
        (
            {"memory": "8000"},
            f"{LIMITS}[hamipy.io/memory]: '8000': is 8000 bytes, less than 1Mi; did you mean 8000Mi?",
        ),
        ({"memory": "0"}, f"{LIMITS}[hamipy.io/memory]: '0': must be 1Mi..1Pi"),
        ({"memory": "-8Gi"}, f"{LIMITS}[hamipy.io/memory]: '-8Gi': must be 1Mi..1Pi"),
        ({"memory_percentage": "101"}, f"{LIMITS}[hamipy.io/memory-percentage]: '101': must be 1..100"),
        ({"cores": "0"}, f"{LIMITS}[hamipy.io/cores]: '0': must be 1..100"),
        ({"cores": "101"}, f"{LIMITS}[hamipy.io/cores]: '101': must be 1..100"),
        (
            {"memory": "1Gi", "memory_percentage": "50"},
            f"{LIMITS}[hamipy.io/memory-percentage]: 50: says the same as {LIMITS}[hamipy.io/memory]; keep one of them",
        ),
        (
            {"memory": "1Gi", "memory_total": "3Gi"},
            f"{LIMITS}[hamipy.io/memory-total]: 3221225472: is filled in for quotas (devices x memory); leave it out",
        ),
        (
            {"memmory": "1Gi"},
            f"{LIMITS}[hamipy.io/memmory]: '1Gi': is not a resource of ours; did you mean hamipy.io/memory?",
        ),
    ],
)
async def test_a_bad_amount_is_refused_by_name(webhook: Webhook, limits: dict[str, str], sentence: str) -> None:
    assert await refusal(webhook, pod(container(**limits))) == (422, "Invalid", sentence)
    assert webhook.outcomes == {"refused": 1}


async def test_the_sentence_names_the_init_container(webhook: Webhook) -> None:
    obj = pod(container(device="1"), initContainers=[container("load", cores="0")])

    assert await refusal(webhook, obj) == (
        422,
        "Invalid",
        "container load resources.limits[hamipy.io/cores]: '0': must be 1..100",
    )


@pytest.mark.parametrize(
    ("resources", "sentence"),
    [
        (
            {"requests": {"hamipy.io/device": "1"}},
            "container main resources.requests[hamipy.io/device]: '1': write it under resources.limits, where device "
            "resources belong",
        ),
        (
            {"limits": {"hamipy.io/memory": "2Gi"}, "requests": {"hamipy.io/memory": "1Gi"}},
            "container main resources.requests[hamipy.io/memory]: '1Gi': must equal resources.limits (2Gi), or be "
            "left out",
        ),
        (
            {"limits": {"hamipy.io/memory": "2Gi"}, "requests": {"hamipy.io/memory": "much"}},
            "container main resources.requests[hamipy.io/memory]: 'much': must be a whole Kubernetes quantity: 'much' "
            "is not a Kubernetes quantity such as 3, 500m or 8Gi",
        ),
    ],
)
async def test_requests_that_differ_from_limits_are_refused(
    webhook: Webhook, resources: dict[str, Any], sentence: str
) -> None:
    assert await refusal(webhook, pod({"name": "main", "resources": resources})) == (422, "Invalid", sentence)


async def test_requests_that_say_the_same_in_another_way_are_taken(webhook: Webhook) -> None:
    resources = {"limits": {"hamipy.io/memory": "2Gi"}, "requests": {"hamipy.io/memory": "2048Mi"}}

    assert (await ask(webhook, pod({"name": "main", "resources": resources})))["allowed"]


@pytest.mark.parametrize(
    ("annotations", "sentence"),
    [
        (
            {"hamipy.io/modell": "T4"},
            "metadata.annotations[hamipy.io/modell]: 'T4': is not an annotation of ours; did you mean hamipy.io/model?",
        ),
        (
            {"hamipy.io/vendor": " , "},
            "metadata.annotations[hamipy.io/vendor]: ' , ': must be a comma-separated list with at least one entry",
        ),
        (
            {"hamipy.io/node-policy": "best"},
            "metadata.annotations[hamipy.io/node-policy]: 'best': must be one of binpack, spread",
        ),
        (
            {"hamipy.io/device-policy": ""},
            "metadata.annotations[hamipy.io/device-policy]: '': must be one of binpack, spread",
        ),
        (
            {"hamipy.io/topology": "require"},
            "metadata.annotations[hamipy.io/topology]: 'require': is not available in this version of hamipy; "
            "leave it out",
        ),
    ],
)
async def test_a_bad_annotation_of_our_domain_is_refused(
    webhook: Webhook, annotations: dict[str, str], sentence: str
) -> None:
    obj = pod(container(device="1"), annotations=annotations)

    assert await refusal(webhook, obj) == (422, "Invalid", sentence)


@pytest.mark.parametrize("name", ["allocation", "retry"])
async def test_what_the_scheduler_writes_is_not_for_authors(webhook: Webhook, name: str) -> None:
    key = f"hamipy.io/{name}"

    assert await refusal(webhook, pod(container(device="1"), annotations={key: "x", "other.io/a": "b"})) == (
        403,
        "Forbidden",
        f"metadata.annotations[{key}]: 'x': is written by the scheduler only; leave it out",
    )


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA_VISIBLE_DEVICES",
        "ASCEND_VISIBLE_DEVICES",
        "ASCEND_RUNTIME_OPTIONS",
        "ASCEND_VNPU_SPECS",
        "CUDA_DEVICE_MEMORY_LIMIT",
        "CUDA_DEVICE_MEMORY_LIMIT_3",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_MPS_PIPE_DIRECTORY",
        "HAMIPY_DEVICES",
    ],
)
@pytest.mark.parametrize("where", ["containers", "initContainers"])
async def test_environment_that_enforcement_owns_is_refused_in_any_container(
    webhook: Webhook, name: str, where: str
) -> None:
    obj = pod(container(device="1"), initContainers=[])
    obj["spec"][where].append({"name": "helper", "env": [{"name": "PATH", "value": "/"}, {"name": name, "value": "0"}]})

    assert await refusal(webhook, obj) == (
        403,
        "Forbidden",
        f"container helper env: '{name}': is set by hamipy in containers with devices; leave it out",
    )


async def test_a_preset_node_is_refused(webhook: Webhook) -> None:
    assert await refusal(webhook, pod(container(device="1"), nodeName="n1")) == (
        403,
        "Forbidden",
        "spec.nodeName: 'n1': pods that ask for hamipy.io resources must pass the scheduler; use spec.nodeSelector or "
        "node affinity",
    )


async def test_another_scheduler_is_refused(webhook: Webhook) -> None:
    assert await refusal(webhook, pod(container(device="1"), schedulerName="volcano")) == (
        403,
        "Forbidden",
        "spec.schedulerName: 'volcano': pods that ask for hamipy.io resources are placed by hamipy-scheduler; leave "
        "the field out",
    )


async def test_a_sentence_stays_short_whatever_was_written(webhook: Webhook) -> None:
    _, _, sentence = await refusal(webhook, pod(container(device="9" * 5000)))

    assert len(sentence) <= 600


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
