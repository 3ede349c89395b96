"""Settings: bad ones are one sentence, the mock's files lie where people look for them."""

from pathlib import Path
from typing import Any

import pytest

from hamipy.core.errors import InvalidField
from hamipy.node.settings import NodeSettings


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"node_name": ""}, "node-name: '': must be the name of this machine's Node object"),
        ({"health_port": 65536}, "health-port: 65536: must be a port, 0..65535, or -1 for none"),
        ({"state_dir": Path("state")}, "state-dir: 'state': must be an absolute path"),
    ],
)
def test_setting_that_cannot_work(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidField) as caught:
        NodeSettings(**({"node_name": "n1"} | settings))
    assert str(caught.value) == sentence


def test_vendors_of_the_file_may_carry_their_settings() -> None:
    settings = NodeSettings(node_name="n1", vendors={"mock": {"profile": "t4x1"}, "acme": {}})
    assert settings.only_vendors == ("mock", "acme")
    assert settings.of_vendor("mock") == {
        "profile": "t4x1",
        "health-file": "/var/lib/hamipy/mock-health.yaml",
        "profile-file": "/var/lib/hamipy/mock-profile",
    }
    assert settings.of_vendor("acme") == {}


def test_flag_wins_over_the_mocks_own_section() -> None:
    settings = NodeSettings(node_name="n1", vendors={"mock": {"profile": "t4x1"}}, mock_profile="a100x8")
    assert settings.of_vendor("mock")["profile"] == "a100x8"
