"""The kubelet's checkpoint is read as every known kubelet writes it, and nothing is made of what is not one."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from hamipy.core.names import KUBELET_RESOURCE
from hamipy.node._generated import deviceplugin_v1beta1_pb2 as pb
from hamipy.node.checkpoint import NOTHING, Checkpoint, CheckpointUnreadable, parse

NAME = "0123456789abcdef0123456789abcdef"


def answer(name: str = f"hamipy.io/share={NAME}") -> str:
    response = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=name)])
    return base64.b64encode(response.SerializeToString()).decode()


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "PodUID": "u",
        "ContainerName": "c",
        "ResourceName": KUBELET_RESOURCE,
        "DeviceIDs": {"-1": ["a::1", "a::0"]},
        "AllocResp": answer(),
    } | changes


def content(*entries: dict[str, Any]) -> bytes:
    data = {"PodDeviceEntries": list(entries), "RegisteredDevices": {KUBELET_RESOURCE: ["a::0"]}, "BootID": "x"}
    return json.dumps({"Data": data, "Checksum": 1}).encode()


@pytest.mark.parametrize("ids", [{"-1": ["a::0", "a::1"]}, {"0": ["a::0"], "1": ["a::1"]}, ["a::1", "a::0"]])
def test_both_shapes_of_device_ids(ids: object) -> None:
    (held,) = parse(content(entry(DeviceIDs=ids))).holding(frozenset({"a::0", "a::1"}))
    assert (held.uid, held.container, held.name) == ("u", "c", NAME)


def test_init_container_and_its_successor_hold_the_same_ids_under_names_of_their_own() -> None:
    other = "f" * 32
    found = parse(content(entry(), entry(ContainerName="d", AllocResp=answer(f"hamipy.io/share={other}"))))
    assert {(h.container, h.name) for h in found.holding(frozenset({"a::0", "a::1"}))} == {("c", NAME), ("d", other)}
    assert found.holding(frozenset({"a::0"})) == ()
    assert found.names == {NAME, other}


def test_other_resources_are_not_ours() -> None:
    assert parse(content(entry(ResourceName="nvidia.com/gpu"))).entries == ()


def test_answer_of_another_kind_has_no_name_of_ours() -> None:
    (held,) = parse(content(entry(AllocResp=answer("nvidia.com/gpu=0")))).entries
    assert held.name == ""


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"Data":3}',
        b'{"Data":{"PodDeviceEntries":"v9"}}',
        content(entry(DeviceIDs=7)),
        content(entry(AllocResp="%%%")),
        content(entry(AllocResp=base64.b64encode(b"\xff\xff").decode())),
        b"\xff\xfe",
    ],
)
def test_what_is_no_checkpoint_is_refused(text: bytes) -> None:
    with pytest.raises(CheckpointUnreadable):
        parse(text)


@pytest.mark.parametrize("text", [b'{"Data":{}}', b'{"Data":{"PodDeviceEntries":null}}', content()])
def test_empty_checkpoint_holds_nothing(text: bytes) -> None:
    assert parse(text).entries == ()


def test_file_is_read_anew_when_it_is_replaced(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.read() is NOTHING
    checkpoint.path.write_bytes(content(entry()))
    first = checkpoint.read()
    assert checkpoint.read() is first
    (tmp_path / "new").write_bytes(content(entry(PodUID="w")))
    (tmp_path / "new").rename(checkpoint.path)
    assert [h.uid for h in checkpoint.read().entries] == ["w"]
    checkpoint.path.unlink()
    assert checkpoint.read().entries == ()


def test_unreadable_file_is_tried_again(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.path.write_bytes(b"{")
    for _ in range(2):
        with pytest.raises(CheckpointUnreadable):
            checkpoint.read()
