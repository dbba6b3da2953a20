from dataclasses import replace
from functools import partial

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Reply
from gpushare.model.gpu import GpuHealth, LeftOut, Limit, NodeInventory
from gpushare.units import MemoryUnit
from gpushare.wire import inventory as inventory_wire
from testing.builders import make_gpu, make_grant, make_inventory
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import (
    METRICS,
    NS,
    PLUGIN,
    Change,
    DoctorKube,
    answers,
    edited,
    forbidden,
    missing,
    put,
    seeded,
    setting,
    together,
)
from testing.manifests import tree
from tests.unit.gpushare_cli import findings


def annotate(key: str, value: str) -> Change:
    return put("Node", "node-b", "metadata", "annotations", key, value=value)


def amount(resource: str, value: str | None = None, name: str = "node-b") -> Change:
    return put("Node", name, "status", "allocatable", resource, value=value)


def publish(inventory: NodeInventory) -> Change:
    """A new inventory, which the kubelet counts as well."""

    def change(each: JsonObject) -> None:
        each["metadata"]["annotations"][names.ANNOTATION_INVENTORY] = inventory_wire.encode(inventory)
        each["status"]["allocatable"] = world.allocatable(inventory)

    return edited("Node", "node-b", change)


def with_faulty_gpu(reason: str = "") -> NodeInventory:
    sound = make_inventory(15, 15, node="node-b")
    return replace(sound, gpus=(sound.gpus[0], replace(make_gpu(1, health=GpuHealth.UNHEALTHY), reason=reason)))


def oversubscribed(limit: Limit) -> NodeInventory:
    sound = make_inventory(16, node="node-b")
    return replace(sound, gpus=(replace(sound.gpus[0], extra_mib=8 * 1024, limit=limit),))


def config_map(name: str, gpus: str) -> Change:
    metadata = {"name": name, "namespace": "kube-system"}
    return seeded({"kind": "ConfigMap", "metadata": metadata, "data": {"gpus": gpus}})


UNREADY_PLUGIN = put("Pod", f"{PLUGIN}-node-b", "status", "conditions")
WITHOUT_PLUGIN = missing("Pod", f"{PLUGIN}-node-b")
WITHOUT_ANNOTATIONS = put("Node", "node-b", "metadata", "annotations", value={})
UNKNOWN = [{"type": "Ready", "status": "Unknown"}]
CHANGES: dict[str, list[Change]] = {
    "plugin-running": [
        together(WITHOUT_ANNOTATIONS, WITHOUT_PLUGIN),
        put("Pod", f"{PLUGIN}-node-b", "metadata", "deletionTimestamp", value=world.ago(seconds=1)),
        UNREADY_PLUGIN,
        together(put("Node", "node-b", "status", "conditions", value=UNKNOWN), UNREADY_PLUGIN),
    ],
    "inventory": [
        WITHOUT_ANNOTATIONS,
        annotate(names.ANNOTATION_INVENTORY, '{"version": 99, "minReader": 98}'),
        publish(make_inventory(node="node-b")),
    ],
    "memory-unit": [publish(make_inventory(15, node="node-b", unit=MemoryUnit(256)))],
    "node-amounts": [amount(names.GPU_MEM, "45"), amount(names.GPU_PERCENT)],
    "stale-inventory": [together(put("Node", "node-b", "metadata", "labels", value={}), WITHOUT_PLUGIN)],
    "gpu-health": [
        publish(with_faulty_gpu()),
        publish(with_faulty_gpu(reason="Xid 79: GPU has fallen off the bus")),
        publish(with_faulty_gpu(reason="no limit can be held: cgroup: old driver")),
        publish(
            replace(make_inventory(15, node="node-b"), left_out=(LeftOut(index=3, reason="in MIG mode; make some"),))
        ),
        config_map("unhealthy-gpu-node-b", "2"),
    ],
    "gpu-cordon": [
        annotate(names.ANNOTATION_CORDON, "0,GPU-3"),
        together(annotate(names.ANNOTATION_CORDON, "GPU-3"), annotate(names.ANNOTATION_HELD, "GPU-3")),
        annotate(names.ANNOTATION_CORDON, "7, GPU-x"),
    ],
    "oversubscription": [
        world.twice(make_grant(0, gib=10, extra_mib=8 * 1024)),
        publish(oversubscribed(Limit.MPS)),
        publish(oversubscribed(Limit.CGROUP)),
        put("Node", "node-b", "metadata", "labels", names.LABEL_OVERSUBSCRIPTION, value="much"),
    ],
}


@pytest.mark.parametrize(("check", "changes"), CHANGES.items())
def test_each_change_has_its_line(check: str, changes: list[Change]) -> None:
    findings.compare(check, changes)


CONTROLLER = names.CONTROLLER_SERVICE
ASKED = "gpushare_extender_requests_total"
GOOD = Reply(
    status=200, text='gpushare_plugin_usage_info{reading="on"} 1\ngpushare_plugin_gpu_foreign_bytes{UUID="G"} 0\n'
)
HIDDEN = Reply(status=200, text='gpushare_plugin_usage_info{reading="no-host-pid"} 1\n')
NO_PROCESSES = Reply(status=200, text='gpushare_plugin_usage_info{reading="on"} 1\n')
FORBIDDEN = kube.ForbiddenError("no")
TEAM = {"kind": "Namespace", "metadata": {"name": "team-a", "labels": {names.WATCHDOG: "evict"}}}
POD = ("spec", "template", "spec")


def never_asked(count: str = "0.0") -> Change:
    page = METRICS[CONTROLLER].replace("} 7.0", "} " + count)
    page += f'{ASKED}{{outcome="fits",verb="filter"}} 9.0\n{ASKED}{{outcome="gpu",verb="{names.OTHERS_VERB}"}} 9.0\n'
    return answers(CONTROLLER, "metrics", page)


def taint(*nodes: str, key: str = names.GPU_MEM, effect: str = "NoSchedule") -> Change:
    spec = {"taints": [{"key": key, "effect": effect}]}
    return together(*(put("Node", name, "spec", value=spec) for name in nodes))


def reads(component: str = "usage", **replies: Reply | kube.KubeError) -> Change:
    """A component was applied. Args: replies: by the last letter of the node; all else is good."""

    def change(api: DoctorKube) -> None:
        world.edit(api, "DaemonSet", PLUGIN, partial(apply, tree.patches(component)[0]))
        for letter in "ab":
            name = f"{PLUGIN}-node-{letter}"
            put("Pod", name, "spec", "containers", 0, "ports", value=PORTS)(api)
            api.replies[kube.pod_path(NS, f"{name}:12347", "proxy/metrics")] = replies.get(letter, GOOD)

    return change


def apply(patch: JsonObject, plugin: JsonObject) -> None:
    spec, more = plugin["spec"]["template"]["spec"], patch["spec"]["template"]["spec"]
    spec["hostPID"] = more["hostPID"]
    spec["containers"][0]["env"] = [*spec["containers"][0]["env"], *more["containers"][0]["env"]]


def replacing(name: str) -> Change:
    return together(UNREADY_PLUGIN, seeded(world.own_pod(name, PLUGIN, node="node-b")))


PORTS = [{"name": "metrics", "containerPort": 12347}]
BOTH = "node-a", "node-b"
PODS = [f"{PLUGIN}-{name}" for name in BOTH]
UNLABELLED = partial(world.gpu_node, name="node-c", labels={"gpushare": "false"}, with_plugin=False)
CASES: dict[str, Change] = {
    "a missing DaemonSet is one line and not one for each node": together(
        missing("DaemonSet", PLUGIN), missing("Pod", *PODS)
    ),
    "a cluster whose nodes no one has labelled says how": together(
        missing("Node", *BOTH),
        missing("Pod", *PODS),
        UNLABELLED,
        put("Node", "node-c", "metadata", "annotations"),
    ),
    "nodes are those that the DaemonSet selects": together(
        put("DaemonSet", PLUGIN, *POD, "nodeSelector", value={"pool": "gpu"}),
        partial(world.gpu_node, name="node-c", labels={"pool": "gpu"}, with_plugin=False),
    ),
    "a plugin that is being replaced is ready if its first pod is": replacing("a-first"),
    "or its last": replacing("z-last"),
    "a resource that is switched off is not missed": together(
        setting(GPU_PERCENT="false"), *(amount(names.GPU_PERCENT, name=name) for name in BOTH)
    ),
    "whole GPUs are counted where they are served": together(
        setting(WHOLE_GPUS="true"), amount(names.GPU, "4", "node-a")
    ),
    "ConfigMaps of unhealthy GPUs that may not be listed are a warning": forbidden(
        "/api/v1/namespaces/kube-system/configmaps"
    ),
    "pods without GPUs that no one ranks are pointed out": never_asked(),
    "also if no one can tell how many": never_asked("many"),
    "nodes that are kept for GPU pods are right": together(never_asked(), taint(*BOTH)),
    "by either effect": together(never_asked(), taint(*BOTH, effect="NoExecute")),
    "one that is not is named": together(never_asked(), taint("node-a")),
    "taints that keep no pod away do not count": together(never_asked(), taint(*BOTH, effect="PreferNoSchedule")),
    "nor those of a node's state": together(never_asked(), taint(*BOTH, key="node.kubernetes.io/unreachable")),
    "nor a cloud provider's": together(
        never_asked(), taint(*BOTH, key="node.cloudprovider.kubernetes.io/uninitialized")
    ),
    **{
        f"where use is read by {component} there is nothing to say": together(reads(component), seeded(TEAM))
        for component in ("usage", "watchdog-evict", "watchdog-kill")
    },
    "a node whose plugin sees no processes is named": reads(b=HIDDEN),
    "so is one whose plugin cannot be asked": reads(b=FORBIDDEN),
    "and one whose driver lists none": reads(b=NO_PROCESSES),
    "plugins that may not be listed are one line": together(reads(), forbidden(f"/api/v1/namespaces/{NS}/pods")),
    "a plugin without the processes of its node is one line": together(
        reads(a=HIDDEN, b=HIDDEN),
        put("DaemonSet", PLUGIN, *POD, "hostPID"),
    ),
    "the setting of all components counts too": setting(WATCHDOG="report"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_of_nodes(case: str) -> None:
    assert (world.after(CASES[case]) or ["nothing"]) == findings.golden("doctor", case)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (kube.ForbiddenError("no rights"), "the controller's metrics cannot be read"),
        (Reply(status=200, text="gpushare_ready 1.0\n"), "no scheduler has asked the controller anything yet"),
    ],
)
def test_nothing_is_said_where_no_one_can_tell(answer: Reply | kube.KubeError, why: str) -> None:
    api = world.healthy()
    api.says(CONTROLLER, "metrics", answer)
    [result] = [each for each in world.diagnosis(api).results if each.check.id == "other-pods"]
    assert (result.findings, result.skipped) == ((), why)


def test_where_use_is_not_wanted_no_plugin_is_asked() -> None:
    api = world.healthy()
    assert world.lines(api) == []
    assert not [path for path in api.asked if PLUGIN in path]
