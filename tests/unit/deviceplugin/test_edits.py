import json

from deviceplugin.cdi import ContainerEdits, DeviceNode, Hook, Mount


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
