"""Keeps the MutatingWebhookConfiguration right: whom API servers trust, and which pods they send us.

The chart makes the object. We change two fields of our entry, by JSON patch and only where they differ: to apply
what is right already would make us an owner of it, and the next `helm upgrade` that changes it a conflict.
"""

import asyncio
import base64
import logging
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from hamipy.core.family import Families
from hamipy.core.names import DOMAIN
from hamipy.kube.client import KubeClient
from hamipy.kube.errors import ApiError, KubeError

logger = logging.getLogger(__name__)

JSON_PATCH = "application/json-patch+json"
WEBHOOK = f"pods.{DOMAIN}"
"""Name of our entry in `webhooks`."""
CONDITION = "mentions-our-resources"
"""Name of our match condition."""


def match_condition(families: Families) -> str:
    """CEL, true for a pod that mentions a resource of ours: the same test as `Families.ours`.

    For the neutral family alone it is, to the letter, what the chart installs.
    """
    tests = [f"k.startsWith('{domain}')" for domain in families.domains]
    names = sorted(n for n in families.by_resource if not n.startswith(families.domains))
    if names:
        tests.append(f"k in [{', '.join(map(_quoted, names))}]")
    return (
        "(object.spec.containers + object.spec.?initContainers.orValue([])).exists(c, "
        "[c.?resources.limits.orValue({}), c.?resources.requests.orValue({})].exists(m, "
        f"m.exists(k, {' || '.join(tests)})))"
    )


def _quoted(name: str) -> str:
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


class _Named(Struct, frozen=True):
    name: str = ""
    expression: str = ""


class _ClientConfig(Struct, frozen=True, rename="camel"):
    ca_bundle: str = ""


class _Entry(Struct, frozen=True, rename="camel"):
    name: str = ""
    client_config: _ClientConfig = _ClientConfig()
    match_conditions: list[_Named] = []


class _Configuration(Struct, frozen=True):
    webhooks: list[_Entry] = []


class WebhookConfiguration:
    """Puts our fields right while this replica leads.

    Args:
        client: the API server.
        name: of the object.
        families: whose names pods may use.
        bundle: the CAs to trust, in PEM; None where somebody else writes them.
        leads: whether this replica leads.
        interval: seconds between looks.

    Attributes:
        in_place: the bundle last seen in the object.
        writes: how often it was changed.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        name: str,
        families: Families,
        bundle: Callable[[], bytes | None],
        leads: Callable[[], bool],
        interval: float = 10.0,
    ) -> None:
        self.in_place: bytes | None = None
        self.writes = 0
        self._client, self._families, self._bundle, self._leads = client, families, bundle, leads
        self._name, self._interval = name, interval
        self._path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{name}"
        self._wanted = asyncio.Event()

    def look(self) -> None:
        """Look now: something that goes into the object has changed, or this replica began to lead."""
        self._wanted.set()

    async def run(self) -> None:
        """Keep the object right until cancelled."""
        before = ""
        while True:
            self._wanted.clear()
            if self._leads():
                try:
                    await self.ensure()
                    before = ""
                except KubeError as problem:
                    if str(problem) != before:
                        logger.warning("cannot keep MutatingWebhookConfiguration %s right: %s", self._name, problem)
                    before = str(problem)
            try:
                async with asyncio.timeout(self._interval):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def ensure(self) -> bool:
        """Compare the object with what it should say and change it where it differs; whether it was changed.

        Raises:
            KubeError: it can be neither read nor changed; NotFound when it is not installed.
        """
        now = await self._client.get(self._path, _Configuration)
        at = next((i for i, e in enumerate(now.webhooks) if e.name == WEBHOOK), None)
        if at is None:
            raise ApiError(404, "NotFound", f"it has no entry {WEBHOOK}; install the chart again", "GET", self._path)
        entry, where, bundle = now.webhooks[at], f"/webhooks/{at}", self._bundle()
        patch = _condition_patch(entry, f"{where}/matchConditions", match_condition(self._families))
        if bundle is not None:
            encoded = base64.b64encode(bundle).decode()
            if entry.client_config.ca_bundle != encoded:
                patch.append({"op": "add", "path": f"{where}/clientConfig/caBundle", "value": encoded})
        if patch:
            still = {"op": "test", "path": f"{where}/name", "value": WEBHOOK}
            await self._client.request("PATCH", self._path, body=[still, *patch], content_type=JSON_PATCH)
            self.writes += 1
            logger.info("put MutatingWebhookConfiguration %s right", self._name)
        self.in_place = bundle
        return bool(patch)


def _condition_patch(entry: _Entry, where: str, expression: str) -> list[dict[str, Any]]:
    """JSON patch that gives an entry our match condition, beside others that it may have."""
    for position, condition in enumerate(entry.match_conditions):
        if condition.name == CONDITION:
            if condition.expression == expression:
                return []
            still = {"op": "test", "path": f"{where}/{position}/name", "value": CONDITION}
            return [still, {"op": "replace", "path": f"{where}/{position}/expression", "value": expression}]
    ours = {"name": CONDITION, "expression": expression}
    if entry.match_conditions:
        return [{"op": "add", "path": f"{where}/-", "value": ours}]
    return [{"op": "add", "path": where, "value": [ours]}]
