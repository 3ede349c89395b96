"""What the in-memory API server does for each verb: the rules of the real one, as far as our components meet them."""

import base64
import binascii
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from hamipy.testing._patches import Managers, json_patch, merge
from hamipy.testing._paths import CRDS, KINDS, NODES, PODS, Target
from hamipy.testing._refusal import Refused
from hamipy.testing._schema import check_object
from hamipy.testing._store import Collection, Entry, Object, Store, now

Admission = Callable[[Object], Awaitable[Object]]
"""Takes an AdmissionReview with a request, returns one with a response."""

_GRACE_SECONDS = 30


class Verbs:
    """Writes, with their rules. Reads and watches need none and are elsewhere.

    Attributes:
        admission: asked about every pod that is created over HTTP; None for nobody.
        graceful: whether deleting a pod that runs on a node leaves it terminating until somebody finishes it.
    """

    def __init__(self, *, log_size: int) -> None:
        self.store = Store(self.kind_of, log_size=log_size)
        self.admission: Admission | None = None
        self.graceful = True

    def kind_of(self, path: str) -> str:
        """Kind served at a collection path; Refused 404 when none is."""
        kind = KINDS.get(path)
        if kind is None and path != CRDS:
            kind = next((c["spec"]["names"]["kind"] for c in self._crds() if path in _served(c)), None)
        if kind is None:
            raise Refused(404, "the server could not find the requested resource")
        return kind

    async def create(self, target: Target, obj: Object) -> Entry:
        """POST to a collection."""
        collection = self.store.collection(target.collection)
        self._check(collection, obj, strict=False)
        if target.collection == PODS:
            obj = _new_pod(obj)
            if self.admission is not None:
                obj = await self._admit(self.admission, target, obj)
        return self.put_new(target, obj)

    def put_new(self, target: Target, obj: Mapping[str, Any]) -> Entry:
        """Create without admission."""
        if target.collection == CRDS:
            obj = _established(obj)
        entry = self.store.create(target.collection, target.namespace, obj)
        self._collect_garbage(target.collection, entry)
        return entry

    def update(self, target: Target, obj: Object) -> Entry:
        """PUT an object or its status."""
        entry = self._entry(target)
        return self._write(target, entry, obj)

    def patch(self, target: Target, body: bytes, content_type: str, query: Mapping[str, str]) -> tuple[Entry, bool]:
        """PATCH an object or its status; also whether it was created."""
        kind = content_type.partition(";")[0].strip()
        if kind.startswith("application/apply-patch+"):
            return self._apply(target, _mapping(load_yaml(body)), query)
        entry = self._entry(target)
        current = self.store.collection(target.collection).decoded(entry)
        patch = load_json(body)
        if kind == "application/json-patch+json":
            changed = json_patch(current, patch)
        elif kind in {"application/merge-patch+json", "application/strategic-merge-patch+json"}:
            changed = merge(current, _mapping(patch))
        else:
            raise Refused(415, f"the body of the request was in an unknown format: {kind}")
        return self._write(target, entry, _mapping(changed)), False

    def _apply(self, target: Target, body: Object, query: Mapping[str, str]) -> tuple[Entry, bool]:
        manager = query.get("fieldManager", "")
        if not manager:
            raise Refused(
                400, "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value: is required for apply"
            )
        collection = self.store.collection(target.collection)
        if body.get("kind") != collection.kind or body.get("apiVersion") != collection.api_version:
            raise Refused(400, f"invalid object type: {body.get('apiVersion')}, Kind={body.get('kind')}")
        force = query.get("force") == "true"
        self._check(collection, body, strict=True)
        entry = collection.entries.get((target.namespace, target.name))
        if entry is None:
            if target.subresource:
                raise Refused(404, f'{collection.resource} "{target.name}" not found')
            managers = Managers()
            body = {**body, "metadata": {**body.get("metadata", {}), "name": target.name}}
            created = self.put_new(target, managers.apply({}, body, manager, force=force))
            created.managers = managers
            return created, True
        changed = entry.managers.apply(collection.decoded(entry), body, manager, force=force)
        return self._write(target, entry, changed), False

    def _write(self, target: Target, entry: Entry, obj: Object) -> Entry:
        """Hold a changed object to preconditions and subresource rules, and store it."""
        collection = self.store.collection(target.collection)
        metadata = _mapping(obj.get("metadata"))
        if metadata.get("name", target.name) != target.name:
            raise Refused(400, f"the name of the object ({metadata['name']}) does not match the name on the URL")
        if metadata.get("uid", entry.uid) != entry.uid:
            raise Refused(422, f"{collection.kind} is invalid: metadata.uid: {metadata['uid']}: field is immutable")
        if metadata.get("resourceVersion", str(entry.version)) != str(entry.version):
            raise Refused(409, "the object has been modified; please apply your changes to the latest version")
        current = collection.decoded(entry)
        if target.subresource == "status":
            obj = {**current, **({"status": obj["status"]} if "status" in obj else {})}
        elif target.collection in {PODS, NODES}:
            obj = {**obj, "status": current.get("status", {})}
            if target.collection == PODS and obj["spec"].get("nodeName") != current["spec"].get("nodeName"):
                raise Refused(
                    422, f'Pod "{target.name}" is invalid: spec: Forbidden: pod updates may not change nodeName'
                )
        if target.collection == CRDS:
            obj = _established(obj)
        for constant in ("creationTimestamp", "deletionTimestamp"):
            if constant in current["metadata"]:
                obj["metadata"] = {**obj["metadata"], constant: current["metadata"][constant]}
        self._check(collection, obj, strict=False)
        after = self.store.update(target.collection, entry, obj)
        before = current["metadata"]
        if before.get("deletionTimestamp") and before.get("finalizers") and not obj["metadata"].get("finalizers"):
            return self._gone(target.collection, after)
        self._collect_garbage(target.collection, after)
        return after

    def bind(self, target: Target, binding: Object) -> None:
        """POST pods/binding: node and annotations in one step (`pkg/registry/core/pod/storage`, assignPod)."""
        entry = self._entry(target)
        pod = self.store.collection(PODS).decoded(entry)
        metadata, node = _mapping(binding.get("metadata")), _mapping(binding.get("target")).get("name", "")
        if not node:
            raise Refused(422, f'Binding "{target.name}" is invalid: target.name: Required value')
        problem = ""
        if metadata.get("uid", entry.uid) != entry.uid:
            problem = f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {entry.uid}"
        elif pod["metadata"].get("deletionTimestamp"):
            problem = f"pod {target.name} is being deleted, cannot be assigned to a host"
        elif pod["spec"].get("nodeName"):
            problem = f'pod {target.name} is already assigned to node "{pod["spec"]["nodeName"]}"'
        elif pod["spec"].get("schedulingGates"):
            problem = f"pod {target.name} has non-empty .spec.schedulingGates"
        if problem:
            raise Refused(409, f'Operation cannot be fulfilled on pods/binding "{target.name}": {problem}')
        pod["spec"]["nodeName"] = node
        for field in ("annotations", "labels"):
            if metadata.get(field):
                pod["metadata"][field] = {**pod["metadata"].get(field, {}), **metadata[field]}
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}
        status = pod.setdefault("status", {})
        status["conditions"] = [c for c in status.get("conditions", []) if c["type"] != "PodScheduled"] + [scheduled]
        self.store.update(PODS, entry, pod)

    def delete(self, target: Target, options: Mapping[str, Any], query: Mapping[str, str]) -> Entry | None:
        """DELETE an object: gone at once (None), or terminating (its new state)."""
        entry = self._entry(target)
        required = _mapping(options.get("preconditions"))
        if required.get("uid", entry.uid) != entry.uid:
            raise Refused(409, f"Precondition failed: UID in precondition: {required['uid']}, {entry.uid}")
        if required.get("resourceVersion", str(entry.version)) != str(entry.version):
            raise Refused(409, "Precondition failed: ResourceVersion in precondition")
        obj = self.store.collection(target.collection).decoded(entry)
        grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        if target.collection == PODS:
            default = obj["spec"].get("terminationGracePeriodSeconds", _GRACE_SECONDS)
            seconds = int(default if grace is None else grace)
            done = obj.get("status", {}).get("phase") in {"Succeeded", "Failed"}
            terminating = self.graceful and seconds > 0 and bool(obj["spec"].get("nodeName")) and not done
        else:
            seconds, terminating = 0, False
        if not terminating and not obj["metadata"].get("finalizers"):
            if target.collection == PODS and grace is None and not obj["metadata"].get("deletionTimestamp"):
                # The real server shortens the grace period first, and watches see that.
                entry = self.store.update(PODS, entry, _terminating(obj, 0))
            self._gone(target.collection, entry)
            return None
        if obj["metadata"].get("deletionTimestamp"):
            return entry
        return self.store.update(target.collection, entry, _terminating(obj, seconds))

    def finish(self, target: Target) -> None:
        """Take an object out, as the kubelet does when the containers have ended."""
        self._gone(target.collection, self._entry(target))

    def _entry(self, target: Target) -> Entry:
        return self.store.get(target.collection, (target.namespace, target.name))

    def _gone(self, collection: str, entry: Entry) -> Entry:
        last = self.store.remove(collection, entry)
        for path, other in list(self.store.collections.items()):
            for owned in [e for e in other.entries.values() if any(uid == entry.uid for _, _, uid in e.owners)]:
                if all(uid not in self.store.uids for _, _, uid in owned.owners):
                    self._gone(path, owned)
        return last

    def _collect_garbage(self, collection: str, entry: Entry) -> None:
        """An object goes at once when the names of its owners belong to other uids now."""
        if entry.owners and all(uid not in self.store.uids and self._exists(k, n) for k, n, uid in entry.owners):
            self._gone(collection, entry)

    def _exists(self, kind: str, name: str) -> bool:
        same_kind = [c for c in self.store.collections.values() if c.kind == kind]
        return any(key[1] == name for collection in same_kind for key in collection.entries)

    def _crds(self) -> list[Object]:
        crds = self.store.collections.get(CRDS)
        return [crds.decoded(e) for e in crds.entries.values()] if crds is not None else []

    def _check(self, collection: Collection, obj: Object, *, strict: bool) -> None:
        if collection.builtin:
            return
        for crd in self._crds():
            if collection.path in _served(crd):
                version = collection.api_version.rpartition("/")[2]
                schema = next(v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["name"] == version)
                check_object(collection.kind, obj, schema, strict=strict)

    async def _admit(self, admission: Admission, target: Target, obj: Object) -> Object:
        uid = str(uuid.uuid4())
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": uid,
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
                "requestResource": {"group": "", "version": "v1", "resource": "pods"},
                "name": obj["metadata"].get("name", ""),
                "namespace": target.namespace,
                "operation": "CREATE",
                "userInfo": {"username": "kubernetes-admin"},
                "object": obj,
                "oldObject": None,
                "dryRun": False,
                "options": None,
            },
        }
        try:
            response = (await admission(review))["response"]
        except Exception as error:
            raise Refused(500, f'Internal error occurred: failed calling webhook "pods.hamipy.io": {error}') from error
        if response.get("uid") != uid:
            raise Refused(
                500, "Internal error occurred: failed calling webhook: expected response.uid to be the request's"
            )
        if not response.get("allowed"):
            status = response.get("status") or {}
            text = status.get("message") or "no explanation"
            code = max(int(status.get("code") or 0), 400)
            raise Refused(
                code, f'admission webhook "pods.hamipy.io" denied the request: {text}', status.get("reason", "")
            )
        if response.get("patch"):
            try:
                patch = base64.b64decode(response["patch"], validate=True)
            except binascii.Error as error:
                raise Refused(500, "Internal error occurred: webhook patch is not base64") from error
            return _mapping(json_patch(obj, load_json(patch)))
        return obj


def load_json(body: bytes) -> Any:
    """A JSON body; Refused 400 when it is none."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise Refused(400, f"the object provided is unrecognized: {error}") from error


def load_yaml(body: bytes) -> Any:
    """A YAML body; Refused 400 when it is none."""
    if body.lstrip().startswith(b"{"):
        return load_json(body)
    import yaml

    try:
        return yaml.safe_load(body)
    except yaml.YAMLError as error:
        raise Refused(400, f"error decoding YAML: {error}") from error


def _mapping(value: Any) -> Object:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused(400, f"expected an object, got {type(value).__name__}")
    return value


def _terminating(obj: Object, seconds: int) -> Object:
    moment = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    grace = {"deletionTimestamp": moment, "deletionGracePeriodSeconds": seconds}
    return {**obj, "metadata": {**obj["metadata"], **grace}}


def _new_pod(obj: Object) -> Object:
    """A pod as the API server completes it at creation."""
    spec = {"schedulerName": "default-scheduler", "restartPolicy": "Always", **_mapping(obj.get("spec"))}
    metadata = {k: v for k, v in _mapping(obj.get("metadata")).items() if k not in {"uid", "resourceVersion"}}
    return {**obj, "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def _established(crd: Mapping[str, Any]) -> Object:
    conditions = [{"type": t, "status": "True", "reason": "Fake"} for t in ("NamesAccepted", "Established")]
    return {**crd, "status": {"conditions": conditions, "acceptedNames": crd["spec"]["names"]}}


def _served(crd: Mapping[str, Any]) -> list[str]:
    spec = crd["spec"]
    return [f"/apis/{spec['group']}/{v['name']}/{spec['names']['plural']}" for v in spec["versions"] if v["served"]]
