"""The mutating webhook: completes what a pod asks of us, and refuses what no cluster could give.

`Webhook.review` is a function from bytes to bytes; `scheduler.app` puts it behind HTTP. Wire format:
admission.k8s.io/v1 AdmissionReview. A pod that asks for nothing of ours is allowed as it is. The answer depends on the
pod alone, so dry runs and repeated calls are safe; a completed pod is answered with no patch.
"""

import base64
import logging
from collections import Counter
from typing import Any

import msgspec
from msgspec import Struct

from hamipy.core.errors import HamipyError, InvalidRequest
from hamipy.core.family import Families
from hamipy.core.model import ContainerKind
from hamipy.core.names import DOMAIN, RESERVED_ENV, RESERVED_ENV_PREFIXES
from hamipy.core.request import ContainerResources, completions, read_pod, refuse_reserved
from hamipy.kube.objects import Container, Pod

logger = logging.getLogger(__name__)

API_VERSION = "admission.k8s.io/v1"
DEFAULT_SCHEDULER = "default-scheduler"

_MAX_SENTENCE = 600

_FORBIDDEN, _INVALID = (403, "Forbidden"), (422, "Invalid")


class MalformedReview(HamipyError):
    """The body is not an AdmissionReview for a pod; answered with 400."""


class NotAllowed(InvalidRequest):
    """What is refused for who may write it, not for its value; answered with code 403."""


class _Kind(Struct, frozen=True):
    kind: str = ""
    version: str = ""


class _Request(Struct, frozen=True, rename="camel"):
    uid: str = ""
    kind: _Kind = _Kind()
    sub_resource: str = ""
    operation: str = "CREATE"
    namespace: str = ""
    name: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: _Request | None = None


class _Status(Struct, frozen=True):
    code: int
    reason: str
    message: str


class _Response(Struct, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    status: _Status | None = None
    patch_type: str | None = None
    patch: str | None = None


class _Answer(Struct, rename="camel"):
    api_version: str
    kind: str
    response: _Response


Patch = list[dict[str, Any]]
"""JSON Patch (RFC 6902)."""


class Webhook:
    """Answers AdmissionReviews.

    Args:
        families: the vocabularies that pods may use.
        scheduler_name: kube-scheduler profile that our pods go to.

    Attributes:
        outcomes: reviews by outcome: `untouched`, `completed`, `complete`, `refused`, `malformed`.
    """

    def __init__(self, families: Families, *, scheduler_name: str) -> None:
        self.families, self.scheduler_name = families, scheduler_name
        self.outcomes: Counter[str] = Counter()
        self._reviews = msgspec.json.Decoder(_Review)
        self._pods = msgspec.json.Decoder(Pod)
        self._encoder = msgspec.json.Encoder()

    def review(self, body: bytes) -> bytes:
        """The answer to one AdmissionReview.

        Raises:
            MalformedReview: one sentence for whoever configured the caller.
        """
        try:
            request, pod = self._read(body)
        except MalformedReview:
            self.outcomes["malformed"] += 1
            raise
        response = _Response(request.uid, allowed=True)
        if pod is None or not self.concerns(pod):
            self.outcomes["untouched"] += 1
        else:
            try:
                patch = self.complete(pod, namespace=request.namespace)
            except InvalidRequest as refusal:
                response.allowed = False
                code, reason = _FORBIDDEN if isinstance(refusal, NotAllowed) else _INVALID
                response.status = _Status(code, reason, _shortened(str(refusal)))
                self.outcomes["refused"] += 1
                name = pod.metadata.name or request.name or "(name to be generated)"
                logger.info("refused pod %s/%s: %s", request.namespace, name, response.status.message)
            else:
                self.outcomes["completed" if patch else "complete"] += 1
                if patch:
                    response.patch_type = "JSONPatch"
                    response.patch = base64.b64encode(self._encoder.encode(patch)).decode()
        return self._encoder.encode(_Answer(API_VERSION, "AdmissionReview", response))

    def _read(self, body: bytes) -> tuple[_Request, Pod | None]:
        """The request and its pod; no pod where the request is not the creation of one."""
        try:
            review = self._reviews.decode(body)
        except msgspec.MsgspecError as error:
            raise MalformedReview(f"body: not an AdmissionReview in JSON: {error}") from error
        if review.kind != "AdmissionReview" or review.api_version != API_VERSION:
            raise MalformedReview(
                f"apiVersion, kind: {review.api_version!r}, {review.kind!r}: must be {API_VERSION} AdmissionReview"
            )
        request = review.request
        if request is None or not request.uid:
            raise MalformedReview("request.uid: missing: an AdmissionReview carries the request that it asks about")
        if request.operation != "CREATE" or request.sub_resource:
            return request, None
        if request.kind.kind != "Pod":
            raise MalformedReview(f"request.kind.kind: {request.kind.kind!r}: this webhook reviews pods only")
        try:
            return request, self._pods.decode(request.object)
        except msgspec.MsgspecError as error:
            raise MalformedReview(f"request.object: not a Pod: {error}") from error

    def concerns(self, pod: Pod) -> bool:
        """Whether a container mentions a resource of ours; the same test as the configuration's matchConditions."""
        return any(
            self.families.ours(name)
            for container in (*pod.spec.containers, *pod.spec.init_containers)
            for amounts in (container.resources.limits, container.resources.requests)
            for name in amounts
        )

    def complete(self, pod: Pod, *, namespace: str = "") -> Patch:
        """What has to be written into a pod so that it says in full what it gets; empty when it does already.

        Raises:
            NotAllowed: the author wrote what only the scheduler, or enforcement, writes.
            InvalidRequest: no cluster could give what it asks for.
        """
        self._refuse_foreign(pod)
        containers = _containers(pod)
        read_pod(
            uid=pod.metadata.uid,
            namespace=namespace or pod.metadata.namespace,
            name=pod.metadata.name,
            containers=[written for _, _, written in containers],
            annotations=pod.metadata.annotations,
            families=self.families,
        )
        patch: Patch = []
        if pod.spec.scheduler_name != self.scheduler_name:
            patch.append({"op": "add", "path": "/spec/schedulerName", "value": self.scheduler_name})
        for path, container, written in containers:
            patch += _additions(path, container, completions(written, self.families))
        return patch

    def _refuse_foreign(self, pod: Pod) -> None:
        annotations, spec = pod.metadata.annotations, pod.spec
        try:
            refuse_reserved(annotations)
        except InvalidRequest as refusal:
            raise NotAllowed(refusal.field, refusal.value, refusal.fix) from refusal
        if spec.node_name:
            fix = (
                f"pods that ask for {DOMAIN} resources must pass the scheduler; use spec.nodeSelector or node affinity"
            )
            raise NotAllowed("spec.nodeName", spec.node_name, fix)
        if spec.scheduler_name not in ("", DEFAULT_SCHEDULER, self.scheduler_name):
            fix = f"pods that ask for {DOMAIN} resources are placed by {self.scheduler_name}; leave the field out"
            raise NotAllowed("spec.schedulerName", spec.scheduler_name, fix)
        for container in (*spec.init_containers, *spec.containers):
            for variable in container.env:
                if variable.name in RESERVED_ENV or variable.name.startswith(RESERVED_ENV_PREFIXES):
                    where = f"container {container.name} env"
                    raise NotAllowed(where, variable.name, "is set by hamipy in containers with devices; leave it out")


def _containers(pod: Pod) -> list[tuple[str, Container, ContainerResources]]:
    """The containers, init containers first: JSON pointer, container, and its resources as their author wrote them."""
    paths = [f"/spec/initContainers/{i}" for i in range(len(pod.spec.init_containers))]
    paths += [f"/spec/containers/{i}" for i in range(len(pod.spec.containers))]
    return [(path, c, _written(c, kind)) for path, (c, kind) in zip(paths, pod.containers, strict=True)]


def _written(container: Container, kind: ContainerKind) -> ContainerResources:
    """Without the requests that the API server copied from the limits: a refusal would name a field nobody wrote."""
    limits = container.resources.limits
    requests = {name: amount for name, amount in container.resources.requests.items() if limits.get(name) != amount}
    return ContainerResources(container.name, kind, limits, requests)


def _additions(path: str, container: Container, added: dict[str, str]) -> Patch:
    """`added` into limits and requests; Kubernetes demands both to be equal for names like ours."""
    patch: Patch = []
    for field, there in (("limits", container.resources.limits), ("requests", container.resources.requests)):
        missing = {name: amount for name, amount in sorted(added.items()) if name not in there}
        where = f"{path}/resources/{field}"
        if there:
            patch += [{"op": "add", "path": f"{where}/{_escape(n)}", "value": amount} for n, amount in missing.items()]
        elif missing:
            patch.append({"op": "add", "path": where, "value": missing})
    return patch


def _escape(key: str) -> str:
    """A key in a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _shortened(sentence: str) -> str:
    return sentence if len(sentence) <= _MAX_SENTENCE else f"{sentence[: _MAX_SENTENCE - 3]}..."
