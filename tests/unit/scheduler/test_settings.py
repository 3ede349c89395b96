"""What `hamipy scheduler` refuses to begin with."""

from typing import Any

import pytest

from hamipy.core.errors import InvalidField
from hamipy.scheduler.settings import SchedulerSettings


def test_the_defaults_need_only_the_pods_name() -> None:
    settings = SchedulerSettings(pod_name="hamipy-scheduler-0")

    assert (settings.extender_port, settings.webhook_port, settings.metrics_port) == (8888, 9443, 9464)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pod_name": ""}, "pod-name: '': name this pod (downward API), or say --no-leadership"),
        ({"extender_port": -1}, "extender-port: -1: must be a port, 0..65535"),
        ({"webhook_port": 70000}, "webhook-port: 70000: must be a port, 0..65535"),
        ({"metrics_port": 9443}, "webhook-port: 9443: is given to another server too; each needs its own"),
        ({"namespace": "Team_A"}, "namespace: 'Team_A': must be a DNS label such as hamipy-system"),
        ({"webhook_service": ""}, "webhook-service: '': must be a DNS label such as hamipy-system"),
        ({"domain": "gpu.example.com"}, "domain: 'gpu.example.com': this version serves hamipy.io only; leave it out"),
        (
            {"scheduler_name": "default-scheduler"},
            "scheduler-name: 'default-scheduler': must be a profile of our own, not the default one",
        ),
        ({"renew_deadline": 3.0}, "renew-deadline: 3.0: must be 0..3.0 (lease-duration)"),
        ({"node_policy": "best"}, "node-policy: 'best': must be one of binpack, spread"),
        ({"device_policy": "best"}, "device-policy: 'best': must be one of binpack, spread"),
    ],
)
def test_what_cannot_work_is_refused_by_flag(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidField) as caught:
        SchedulerSettings(**{"pod_name": "p", **changes})
    assert str(caught.value) == sentence


def test_free_ports_may_be_chosen_for_all() -> None:
    SchedulerSettings(pod_name="p", extender_port=0, webhook_port=0, metrics_port=0)
