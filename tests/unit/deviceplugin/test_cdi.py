"""CDI specs: what a container gets, as it is written and read."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin import cdi
from deviceplugin.cdi import ContainerEdits, DeviceNode, Hook, Mount
from gpushare.errors import WireError
from testing.deviceplugin import nvidia


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
LONG = "x" * 5000


def changed(*path: str | int, to: Any) -> Any:
    """A good spec, but for one place."""
    document = copy.deepcopy(nvidia.BY_UUID)
    holder: Any = document
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = to
    return document


EDITS, FIRST = ("devices", 0, "containerEdits"), "devices[0].containerEdits."
NODE, OF_NODE = (*EDITS, "deviceNodes", 0), f"{FIRST}deviceNodes[0]."
HOOK = ("containerEdits", "hooks", 0)
MOUNT, OF_MOUNT = ("containerEdits", "mounts", 0), "containerEdits.mounts[0]."


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "expected an object, found a list"),
        (None, "expected an object, found nothing"),
        ({}, "kind: expected vendor/class, found ''"),
        (changed("kind", to=3), "kind: expected a string, found a number"),
        (changed("kind", to="../../etc/passwd"), "kind: expected vendor/class, found '../../etc/passwd'"),
        (changed("devices", to={}), "devices: expected a list, found an object"),
        (changed("devices", to=[{}] * 2), "devices: two with the same name"),
        (changed("devices", to=[{}] * 2049), "devices: 2049 entries, more than 2048"),
        (changed("devices", 0, "name", to=LONG), "devices[0].name: a string of 5000 characters; expected at most 4096"),
        (changed(*EDITS, "env", to=["X"]), f"{FIRST}env: expected NAME=VALUE, found 'X'"),
        (changed(*EDITS, "env", to=["=1"]), f"{FIRST}env: expected NAME=VALUE, found '=1'"),
        (changed(*EDITS, "env", to=[1]), f"{FIRST}env[0]: expected a string, found a number"),
        (changed(*EDITS, "env", to=["A=\0"]), f"{FIRST}env: a string of 3 characters"),
        (changed(*EDITS, "env", to=["A=1"] * 2049), f"{FIRST}env: 2049 entries, more than 2048"),
        (changed(*NODE, "path", to="dev/nvidia0"), f"{OF_NODE}path: expected an absolute path, found 'dev/nvidia0'"),
        (changed(*NODE, "major", to=2**31), f"{OF_NODE}major: expected a whole number from 0 to 2147483647"),
        (changed(*NODE, "minor", to="1"), f"{OF_NODE}minor: expected a whole number from 0 to 2147483647"),
        (changed(*NODE, "type", to="d"), f"{OF_NODE}type: expected b, c, u or p, found 'd'"),
        (changed(*NODE, "permissions", to="rwx"), f"{OF_NODE}permissions: expected letters of rwm, found 'rwx'"),
        (
            changed(*HOOK, "hookName", to="now"),
            "containerEdits.hooks[0].hookName: expected one of createContainer, createRuntime, poststart, poststop,"
            " prestart, startContainer, found 'now'",
        ),
        (changed(*HOOK, "path", to="x"), "containerEdits.hooks[0].path: expected an absolute path, found 'x'"),
        (changed(*MOUNT, "hostPath", to=""), f"{OF_MOUNT}hostPath: expected a string, found an empty string"),
        (changed(*MOUNT, "containerPath", to="x"), f"{OF_MOUNT}containerPath: expected an absolute path, found 'x'"),
        (changed("containerEdits", to="x"), "containerEdits: expected an object, found a string"),
    ],
)
def test_what_is_wrong_is_named(document: Any, message: str) -> None:
    with pytest.raises(WireError) as caught:
        cdi.read(document, FILE)
    assert str(caught.value).startswith(message)


def test_what_is_not_used_is_passed_over() -> None:
    document = changed(*EDITS, "additionalGids", to=[44])
    document["annotations"] = {"a": "b"}
    assert cdi.read(document, FILE) == cdi.read(nvidia.BY_UUID, FILE)


def test_edits_are_written_as_they_were_read() -> None:
    read = cdi.read(nvidia.BY_UUID, FILE)
    written = read.common.encode()
    assert written == nvidia.BY_UUID["containerEdits"]


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
