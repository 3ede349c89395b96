"""CDI specs: what vendors ask for, merged and written as the specification has it."""

import json
from pathlib import Path

import pytest

from hamipy.core.vendor import ContainerEdits, DeviceNode, Hook, Mount
from hamipy.node.cdi import EditsConflict, Specs, merge, render


def test_spec_has_the_fields_of_cdi() -> None:
    edits = ContainerEdits(
        {"B": "2", "A": "1"},
        (Mount("/h", "/c"),),
        (DeviceNode("/dev/x"), DeviceNode("/dev/y", "/dev/z", "rwm")),
        (Hook("createContainer", "/bin/hook", ("hook", "a"), ("X=1",)),),
    )
    assert json.loads(render("n", edits)) == {
        "cdiVersion": "0.6.0",
        "kind": "hamipy.io/share",
        "devices": [
            {
                "name": "n",
                "containerEdits": {
                    "env": ["A=1", "B=2"],
                    "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "nosuid", "nodev", "bind"]}],
                    "deviceNodes": [
                        {"path": "/dev/x", "hostPath": "/dev/x", "permissions": "rw"},
                        {"path": "/dev/y", "hostPath": "/dev/z", "permissions": "rwm"},
                    ],
                    "hooks": [
                        {"hookName": "createContainer", "path": "/bin/hook", "args": ["hook", "a"], "env": ["X=1"]}
                    ],
                },
            }
        ],
    }


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (ContainerEdits({"X": "1"}), ContainerEdits({"X": "2"})),
        (ContainerEdits(mounts=(Mount("/a", "/c"),)), ContainerEdits(mounts=(Mount("/b", "/c"),))),
        (ContainerEdits(device_nodes=(DeviceNode("/d"),)), ContainerEdits(device_nodes=(DeviceNode("/d", "/e"),))),
    ],
)
def test_two_wishes_for_one_thing_are_refused_and_the_same_wish_twice_is_one(
    a: ContainerEdits, b: ContainerEdits
) -> None:
    with pytest.raises(EditsConflict):
        merge([a, b])
    assert merge([a, a]) == merge([a])


def test_equal_spec_is_not_written_again_and_a_removed_one_is(tmp_path: Path) -> None:
    specs = Specs(tmp_path / "cdi")
    edits = ContainerEdits({"A": "1"})
    specs.write("n", edits)
    first = specs.path("n").stat().st_ino
    specs.write("n", edits)
    assert specs.path("n").stat().st_ino == first
    specs.write("n", ContainerEdits({"A": "2"}))
    assert specs.path("n").stat().st_ino != first
    assert list(specs.names()) == ["n"]
    specs.remove("n")
    specs.remove("n")
    assert list(tmp_path.joinpath("cdi").iterdir()) == []
