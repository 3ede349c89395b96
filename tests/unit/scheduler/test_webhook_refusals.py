"""What the webhook refuses, each with its one sentence."""

from typing import Any

import pytest

from hamipy.scheduler.webhook import Webhook
from tests.unit.scheduler.reviews import ask, container, pod, refusal

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
