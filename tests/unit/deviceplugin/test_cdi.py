"""CDI specs: what a container gets, as it is written and read."""

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import given, strategies as st

from deviceplugin import cdi
from deviceplugin.cdi import ContainerEdits, DeviceNode, Hook, Mount
from gpushare.errors import WireError
from testing.deviceplugin import nvidia
from tests.unit.deviceplugin import golden


def test_edits_are_written_as_the_cdi_specification_has_them() -> None:
    edits = ContainerEdits(
        env=(("A", "1"), ("B", "")),
        device_nodes=(DeviceNode(path="/dev/nvidia0", kind="c", major=195, minor=0), DeviceNode(path="/dev/nvidiactl")),
        mounts=(Mount(host_path="/lib/a", container_path="/lib/b"),),
        hooks=(Hook(name="createContainer", path="/bin/hook", arguments=("hook", "x"), timeout_s=5),),
    )
    assert json.loads(json.dumps(edits.encode())) == {
        "env": ["A=1", "B="],
        "deviceNodes": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}, {"path": "/dev/nvidiactl"}],
        "mounts": [{"hostPath": "/lib/a", "containerPath": "/lib/b", "options": ["ro", "nosuid", "nodev", "bind"]}],
        "hooks": [{"hookName": "createContainer", "path": "/bin/hook", "args": ["hook", "x"], "timeout": 5}],
    }
    assert ContainerEdits().encode() == {}


def test_merged_edits_have_each_thing_once_and_the_later_variable() -> None:
    node, other = DeviceNode(path="/dev/a"), DeviceNode(path="/dev/b")
    merged = ContainerEdits(env=(("A", "1"), ("B", "2")), device_nodes=(node, other)).merge(
        ContainerEdits(env=(("A", "3"),), device_nodes=(node,))
    )
    assert merged == ContainerEdits(env=(("A", "3"), ("B", "2")), device_nodes=(node, other))


FILE = Path("/etc/cdi/nvidia.yaml")


def changed(*path: str | int, to: Any) -> Any:
    """A good spec, but for one place."""
    document = copy.deepcopy(nvidia.BY_UUID)
    holder: Any = document
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = to
    return document


EDITS = ("devices", 0, "containerEdits")
NODE, HOOK, MOUNT = (*EDITS, "deviceNodes", 0), ("containerEdits", "hooks", 0), ("containerEdits", "mounts", 0)
WRONG = [
    [],
    None,
    {},
    changed("kind", to=3),
    changed("kind", to="../../etc/passwd"),
    changed("devices", to={}),
    changed("devices", to=[{}] * 2),
    changed("devices", to=[{}] * 2049),
    changed("devices", 0, "name", to="x" * 5000),
    *(changed(*EDITS, "env", to=env) for env in (["X"], ["=1"], [1], ["A=\0"], ["A=1"] * 2049)),
    changed(*NODE, "path", to="dev/nvidia0"),
    changed(*NODE, "major", to=2**31),
    changed(*NODE, "minor", to="1"),
    changed(*NODE, "type", to="d"),
    changed(*NODE, "permissions", to="rwx"),
    changed(*HOOK, "hookName", to="now"),
    changed(*HOOK, "path", to="x"),
    changed(*MOUNT, "hostPath", to=""),
    changed(*MOUNT, "containerPath", to="x"),
    changed("containerEdits", to="x"),
]


def test_what_is_wrong_is_named() -> None:
    golden.compare("cdi", (golden.error(WireError, cdi.read, document, FILE) for document in WRONG))


def test_what_is_not_used_is_passed_over_and_the_rest_is_written_as_it_was_read() -> None:
    document = changed(*EDITS, "additionalGids", to=[44])
    document["annotations"] = {"a": "b"}
    read = cdi.read(document, FILE)
    assert read == cdi.read(nvidia.BY_UUID, FILE)
    assert read.common.encode() == nvidia.BY_UUID["containerEdits"]


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    key=st.sampled_from(["kind", "devices", "containerEdits", "name", "deviceNodes", "hooks", "mounts", "env"]),
    value=JSON,
)
def test_nothing_but_a_wire_error_comes_out(key: str, value: Any) -> None:
    documents = [
        {**nvidia.BY_UUID, key: value},
        changed("devices", 0, key, to=value),
        changed(*EDITS, key, to=value),
        changed(*EDITS, "deviceNodes", 0, to=value),
    ]
    for document in documents:
        try:
            cdi.read(document, FILE)
        except WireError:
            continue
