"""Settings of the scheduler role and of the clean-up at uninstall; the command line makes its flags from them."""

import re
from pathlib import Path

from msgspec import Struct

from hamipy.core.errors import InvalidField
from hamipy.core.names import DOMAIN, SCHEDULER_NAME
from hamipy.core.policies import DEFAULT_POLICY, DEVICE_POLICIES, NODE_POLICIES

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class SchedulerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything `hamipy scheduler` is told."""

    kubeconfig: str | None = None
    """Path of a kubeconfig; without it the pod's own account, else the user's default."""
    extender_port: int = 8888
    """Port of the extender, on 127.0.0.1 only; 0 picks a free one."""
    webhook_port: int = 9443
    """Port of the webhook (TLS, all addresses); 0 picks a free one."""
    metrics_port: int = 9464
    """Port of /metrics, /inspect, /healthz and /readyz, on all addresses; 0 picks a free one."""
    pod_name: str = ""
    """Name of this pod; the leader is the pod whose kube-scheduler holds the Lease."""
    namespace: str = "hamipy-system"
    """Namespace of the Lease, the webhook's Service and its Secret."""
    lease_name: str = "hamipy-scheduler"
    """kube-scheduler's Lease, which decides who binds."""
    lease_duration: float = 3.0
    """kube-scheduler's leaseDuration in seconds."""
    renew_deadline: float = 2.0
    """kube-scheduler's renewDeadline in seconds; shorter than the lease."""
    no_leadership: bool = False
    """Always lead; for a scheduler that is alone, as in tests and the demo."""
    scheduler_name: str = SCHEDULER_NAME
    """Profile of kube-scheduler that asks our extender; the webhook puts it into pods."""
    domain: str = DOMAIN
    """Domain of our resources and annotations."""
    webhook_service: str = "hamipy-webhook"
    """Service of the webhook; its certificate is made for <service>.<namespace>.svc."""
    webhook_configuration: str = "hamipy"
    """MutatingWebhookConfiguration that the leader keeps right."""
    cert_secret: str = "hamipy-webhook-tls"
    """Secret of the self-made certificate."""
    cert_dir: Path | None = None
    """Directory with tls.crt and tls.key of someone else (cert-manager); no own certificate is made then."""
    node_policy: str = DEFAULT_POLICY
    """How one fitting node is preferred over another: binpack or spread."""
    device_policy: str = DEFAULT_POLICY
    """How one fitting device is preferred over another: binpack or spread."""
    stop_limit: float = 10.0
    """Seconds that requests in flight may take when the process is told to stop."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, before anything has begun.

        Raises:
            InvalidField: names the flag.
        """
        ports = [self.extender_port, self.webhook_port, self.metrics_port]
        for flag, port in zip(("extender-port", "webhook-port", "metrics-port"), ports, strict=True):
            if not 0 <= port <= 65535:
                raise InvalidField(flag, port, "must be a port, 0..65535")
            if port and ports.count(port) > 1:
                raise InvalidField(flag, port, "is given to another server too; each needs its own")
        if not self.no_leadership and not self.pod_name:
            raise InvalidField("pod-name", self.pod_name, "name this pod (downward API), or say --no-leadership")
        for flag in ("namespace", "webhook-service"):
            value = getattr(self, flag.replace("-", "_"))
            if not _DNS_LABEL.fullmatch(value):
                raise InvalidField(flag, value, "must be a DNS label such as hamipy-system")
        if self.domain != DOMAIN:
            raise InvalidField("domain", self.domain, f"this version serves {DOMAIN} only; leave it out")
        if not self.scheduler_name or self.scheduler_name == "default-scheduler":
            raise InvalidField(
                "scheduler-name", self.scheduler_name, "must be a profile of our own, not the default one"
            )
        if not 0 < self.renew_deadline < self.lease_duration:
            raise InvalidField(
                "renew-deadline", self.renew_deadline, f"must be 0..{self.lease_duration} (lease-duration)"
            )
        for flag, known in (("node-policy", NODE_POLICIES), ("device-policy", DEVICE_POLICIES)):
            value = getattr(self, flag.replace("-", "_"))
            if value not in known:
                raise InvalidField(flag, value, f"must be one of {', '.join(known)}")


class UninstallSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything `hamipy uninstall` is told."""

    kubeconfig: str | None = None
    """Path of a kubeconfig; without it the pod's own account, else the user's default."""
    namespace: str = "hamipy-system"
    """Namespace that hamipy is installed in."""
    daemonset: str = "hamipy-node"
    """DaemonSet of the node daemons; it is deleted first, for they would publish again."""
    deployment: str = "hamipy-scheduler"
    """Deployment of the schedulers; it is deleted first, for they would publish again."""
    cert_secret: str = "hamipy-webhook-tls"
    """Secret of the webhook's self-made certificate."""
    lease_name: str = "hamipy-scheduler"
    """Lease by which the schedulers elected their leader."""
    stop_limit: float = 60.0
    """Seconds to wait until the daemons and schedulers have stopped; afterwards it goes on and says so."""
