from collections.abc import Callable
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
    edited,
    forbidden,
    missing,
    setting,
    together,
)
from testing.manifests import tree
from tests.unit.gpushare_cli import findings


def node(change: Callable[[JsonObject], object], name: str = "node-b") -> Change:
    return edited("Node", name, change)


def annotate(key: str, value: str) -> Change:
    return node(lambda each: each["metadata"]["annotations"].update({key: value}))


def amount(resource: str, value: str) -> Change:
    return node(lambda each: each["status"]["allocatable"].update({resource: value}))


def publish(inventory: NodeInventory) -> Change:
    """A new inventory, which the kubelet counts as well."""

    def change(each: JsonObject) -> None:
        each["metadata"]["annotations"][names.ANNOTATION_INVENTORY] = inventory_wire.encode(inventory)
        each["status"]["allocatable"] = world.allocatable(inventory)

    return node(change)


def with_faulty_gpu(reason: str = "") -> NodeInventory:
    sound = make_inventory(15, 15, node="node-b")
    return replace(sound, gpus=(sound.gpus[0], replace(make_gpu(1, health=GpuHealth.UNHEALTHY), reason=reason)))


def oversubscribed(limit: Limit) -> NodeInventory:
    sound = make_inventory(16, node="node-b")
    return replace(sound, gpus=(replace(sound.gpus[0], extra_mib=8 * 1024, limit=limit),))


def unready_node(api: DoctorKube) -> None:
    node(lambda each: each["status"].update(conditions=[{"type": "Ready", "status": "Unknown"}]))(api)
    unready_plugin(api)


def unready_plugin(api: DoctorKube) -> None:
    world.edit(api, "Pod", f"{PLUGIN}-node-b", lambda pod: pod["status"].pop("conditions"))


def new_node(api: DoctorKube) -> None:
    node(lambda each: each["metadata"].update(annotations={}))(api)
    world.vanish(api, "Pod", f"{PLUGIN}-node-b")


def ending_plugin(api: DoctorKube) -> None:
    def ask(pod: JsonObject) -> None:
        pod["metadata"]["deletionTimestamp"] = world.ago(seconds=1)

    world.edit(api, "Pod", f"{PLUGIN}-node-b", ask)


def unlabelled(api: DoctorKube) -> None:
    node(lambda each: each["metadata"].update(labels={}))(api)
    world.vanish(api, "Pod", f"{PLUGIN}-node-b")


def config_map(name: str, gpus: str) -> Change:
    metadata = {"name": name, "namespace": "kube-system"}
    return lambda api: world.seed(api, {"kind": "ConfigMap", "metadata": metadata, "data": {"gpus": gpus}})


CHANGES: dict[str, list[Change]] = {
    "plugin-running": [new_node, ending_plugin, unready_plugin, unready_node],
    "inventory": [
        node(lambda each: each["metadata"].update(annotations={})),
        annotate(names.ANNOTATION_INVENTORY, '{"version": 99, "minReader": 98}'),
        publish(make_inventory(node="node-b")),
    ],
    "memory-unit": [publish(make_inventory(15, node="node-b", unit=MemoryUnit(256)))],
    "node-amounts": [
        amount(names.GPU_MEM, "45"),
        node(lambda each: each["status"]["allocatable"].pop(names.GPU_PERCENT)),
    ],
    "stale-inventory": [unlabelled],
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
        node(
            lambda each: each["metadata"]["annotations"].update(
                {names.ANNOTATION_CORDON: "GPU-3", names.ANNOTATION_HELD: "GPU-3"}
            )
        ),
        annotate(names.ANNOTATION_CORDON, "7, GPU-x"),
    ],
    "oversubscription": [
        world.twice(make_grant(0, gib=10, extra_mib=8 * 1024)),
        publish(oversubscribed(Limit.MPS)),
        publish(oversubscribed(Limit.CGROUP)),
        node(lambda each: each["metadata"]["labels"].update({names.LABEL_OVERSUBSCRIPTION: "much"})),
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
SELECTOR = {"nodeSelector": {"pool": "gpu"}}


def never_asked(count: str = "0.0") -> Change:
    page = METRICS[CONTROLLER].replace("} 7.0", "} " + count)
    page += f'{ASKED}{{outcome="fits",verb="filter"}} 9.0\n{ASKED}{{outcome="gpu",verb="{names.OTHERS_VERB}"}} 9.0\n'
    return lambda api: api.says(CONTROLLER, "metrics", Reply(status=200, text=page))


def taint(*nodes: str, key: str = names.GPU_MEM, effect: str = "NoSchedule") -> Change:
    taints = [{"key": key, "effect": effect}]
    return together(*(node(lambda each: each.setdefault("spec", {}).update(taints=taints), name) for name in nodes))


def reads(component: str = "usage", **replies: Reply | kube.KubeError) -> Change:
    """A component was applied. Args: replies: by the last letter of the node; all else is good."""

    def change(api: DoctorKube) -> None:
        world.edit(api, "DaemonSet", PLUGIN, partial(apply, tree.patches(component)[0]))
        for letter in "ab":
            name = f"{PLUGIN}-node-{letter}"
            world.edit(api, "Pod", name, with_port)
            api.replies[kube.pod_path(NS, f"{name}:12347", "proxy/metrics")] = replies.get(letter, GOOD)

    return change


def apply(patch: JsonObject, plugin: JsonObject) -> None:
    spec, more = plugin["spec"]["template"]["spec"], patch["spec"]["template"]["spec"]
    spec["hostPID"] = more["hostPID"]
    spec["containers"][0]["env"] = [*spec["containers"][0]["env"], *more["containers"][0]["env"]]


def with_port(pod: JsonObject) -> None:
    pod["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": 12347}]


def replacing(name: str) -> Change:
    return together(unready_plugin, lambda api: world.seed(api, world.own_pod(name, PLUGIN, node="node-b")))


def no_percent(name: str) -> Change:
    return node(lambda each: each["status"]["allocatable"].pop(names.GPU_PERCENT), name)


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
        node(lambda each: each["metadata"].pop("annotations"), "node-c"),
    ),
    "nodes are those that the DaemonSet selects": together(
        edited("DaemonSet", PLUGIN, lambda each: each["spec"]["template"]["spec"].update(SELECTOR)),
        partial(world.gpu_node, name="node-c", labels={"pool": "gpu"}, with_plugin=False),
    ),
    "a plugin that is being replaced is ready if its first pod is": replacing("a-first"),
    "or its last": replacing("z-last"),
    "a resource that is switched off is not missed": together(setting(GPU_PERCENT="false"), *map(no_percent, BOTH)),
    "whole GPUs are counted where they are served": together(
        setting(WHOLE_GPUS="true"), node(lambda each: each["status"]["allocatable"].update({names.GPU: "4"}), "node-a")
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
        f"where use is read by {component} there is nothing to say": together(
            reads(component), partial(world.seed, item=TEAM)
        )
        for component in ("usage", "watchdog-evict", "watchdog-kill")
    },
    "a node whose plugin sees no processes is named": reads(b=HIDDEN),
    "so is one whose plugin cannot be asked": reads(b=FORBIDDEN),
    "and one whose driver lists none": reads(b=NO_PROCESSES),
    "plugins that may not be listed are one line": together(reads(), forbidden(f"/api/v1/namespaces/{NS}/pods")),
    "a plugin without the processes of its node is one line": together(
        reads(a=HIDDEN, b=HIDDEN),
        edited("DaemonSet", PLUGIN, lambda each: each["spec"]["template"]["spec"].pop("hostPID")),
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
