"""Pods, AdmissionReviews about them, and what a webhook answers."""

import base64
import copy
from typing import Any

import msgspec

from hamipy.scheduler.app import webhook_app
from hamipy.scheduler.webhook import Webhook
from hamipy.testing._patches import json_patch
from tests.unit.scheduler.asgi import call

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
