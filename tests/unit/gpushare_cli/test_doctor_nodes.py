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
from testing.cli.doctor_cluster import METRICS, NS, PLUGIN, Change, DoctorKube
from testing.manifests import tree
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.findings import Told

NO_PLUGIN = f"no {PLUGIN} pod is there | kubectl -n {NS} describe daemonset {PLUGIN}"


def node(change: Callable[[JsonObject], object], name: str = "node-b") -> Change:
    return lambda api: world.edit(api, "Node", name, change)


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


def test_a_missing_daemonset_is_one_line_and_not_one_for_each_node(told: Told) -> None:
    api = world.healthy()
    world.vanish(api, "DaemonSet", PLUGIN)
    for name in ("node-a", "node-b"):
        world.vanish(api, "Pod", f"{PLUGIN}-{name}")
    assert world.lines(api) == told()


def test_a_cluster_whose_nodes_no_one_has_labelled_says_how(told: Told) -> None:
    api = world.healthy()
    for name in ("node-a", "node-b"):
        world.vanish(api, "Node", name)
        world.vanish(api, "Pod", f"{PLUGIN}-{name}")
    world.gpu_node(api, "node-c", labels={"gpushare": "false"}, with_plugin=False)
    world.edit(api, "Node", "node-c", lambda each: each["metadata"].pop("annotations"))
    assert world.lines(api) == told()


def test_nodes_are_those_that_the_daemonset_selects() -> None:
    api = world.healthy()

    def select(plugin: JsonObject) -> None:
        plugin["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "gpu"}

    world.edit(api, "DaemonSet", PLUGIN, select)
    world.gpu_node(api, "node-c", labels={"pool": "gpu"}, with_plugin=False)
    assert world.lines(api, "plugin-running") == [f"error plugin-running node/node-c | {NO_PLUGIN}"]


@pytest.mark.parametrize("name", ["a-first", "z-last"])
def test_a_plugin_that_is_being_replaced_is_ready_if_one_of_its_pods_is(name: str) -> None:
    api = world.healthy()
    unready_plugin(api)
    world.seed(api, world.own_pod(name, PLUGIN, node="node-b"))
    assert world.lines(api) == []


def test_a_resource_that_is_switched_off_is_not_missed() -> None:
    api = world.healthy()
    world.edit(api, "ConfigMap", "gpushare-config", lambda each: each["data"].update(GPUSHARE_GPU_PERCENT="false"))
    for name in ("node-a", "node-b"):
        node(lambda each: each["status"]["allocatable"].pop(names.GPU_PERCENT), name)(api)
    assert world.lines(api) == []


def test_whole_gpus_are_counted_where_they_are_served() -> None:
    api = world.healthy()
    world.edit(api, "ConfigMap", "gpushare-config", lambda each: each["data"].update(GPUSHARE_WHOLE_GPUS="true"))
    node(lambda each: each["status"]["allocatable"].update({names.GPU: "4"}), "node-a")(api)
    [line] = world.lines(api, "node-amounts")
    assert "node/node-b | allocatable nvidia.com/gpu is 0, but its healthy GPUs are 4 |" in line


def test_config_maps_of_unhealthy_gpus_that_may_not_be_listed_are_a_warning(told: Told) -> None:
    api = world.healthy()
    refused = kube.ForbiddenError("configmaps is forbidden")
    api.fail_next(lambda call: call.path == "/api/v1/namespaces/kube-system/configmaps", refused, times=9)
    assert world.lines(api) == told()


CONTROLLER = names.CONTROLLER_SERVICE
ASKED = "gpushare_extender_requests_total"


def never_asked(count: str = "0.0") -> DoctorKube:
    api = world.healthy()
    page = METRICS[CONTROLLER].replace("} 7.0", "} " + count)
    page += f'{ASKED}{{outcome="fits",verb="filter"}} 9.0\n{ASKED}{{outcome="gpu",verb="{names.OTHERS_VERB}"}} 9.0\n'
    api.says(CONTROLLER, "metrics", Reply(status=200, text=page))
    return api


def taint(*nodes: str, key: str = names.GPU_MEM, effect: str = "NoSchedule") -> Change:
    def change(api: DoctorKube) -> None:
        taints = [{"key": key, "effect": effect}]
        for name in nodes:
            world.edit(api, "Node", name, lambda node: node.setdefault("spec", {}).update(taints=taints))

    return change


@pytest.mark.parametrize("count", ["0.0", "many"])
def test_pods_without_gpus_that_no_one_ranks_are_pointed_out(count: str) -> None:
    [line] = world.lines(never_asked(count))
    assert line.startswith("ok other-pods nodes | 2 of 2 nodes that share also take pods without GPUs")


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_nodes_that_are_kept_for_gpu_pods_are_right(effect: str) -> None:
    api = never_asked()
    taint("node-a", effect=effect)(api)
    [line] = world.lines(api)
    assert line.startswith("ok other-pods node/node-b | 1 of 2 nodes that share also take pods without GPUs")
    taint("node-b", effect=effect)(api)
    assert world.lines(api) == []


@pytest.mark.parametrize(
    "change",
    [
        taint("node-a", "node-b", effect="PreferNoSchedule"),
        taint("node-a", "node-b", key="node.kubernetes.io/unreachable"),
        taint("node-a", "node-b", key="node.cloudprovider.kubernetes.io/uninitialized"),
    ],
)
def test_taints_that_keep_no_pod_away_for_good_do_not_count(change: Change) -> None:
    api = never_asked()
    change(api)
    assert len(world.lines(api, "other-pods")) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (kube.ForbiddenError("no rights"), "the controller's metrics cannot be read"),
        (Reply(status=200, text="gpushare_ready 1.0\n"), "no scheduler has asked the controller anything yet"),
    ],
)
def test_nothing_is_said_where_no_one_can_tell(answer: Reply | kube.KubeError, why: str) -> None:
    api = never_asked()
    api.says(CONTROLLER, "metrics", answer)
    [result] = [each for each in world.diagnosis(api).results if each.check.id == "other-pods"]
    assert (result.findings, result.skipped) == ((), why)


GOOD = Reply(
    status=200, text='gpushare_plugin_usage_info{reading="on"} 1\ngpushare_plugin_gpu_foreign_bytes{UUID="G"} 0\n'
)
HIDDEN = Reply(status=200, text='gpushare_plugin_usage_info{reading="no-host-pid"} 1\n')
HEAD = f"warning usage daemonset/{NS}/{PLUGIN} | "


def reading(component: str = "usage", **replies: Reply | kube.KubeError) -> DoctorKube:
    """A cluster after a component was applied. Args: replies: by the last letter of the node; all else is good."""
    api = world.healthy()
    world.edit(api, "DaemonSet", PLUGIN, partial(apply, tree.patches(component)[0]))
    for letter in "ab":
        name = f"{PLUGIN}-node-{letter}"
        world.edit(api, "Pod", name, with_port)
        api.replies[kube.pod_path(NS, f"{name}:12347", "proxy/metrics")] = replies.get(letter, GOOD)
    return api


def apply(patch: JsonObject, plugin: JsonObject) -> None:
    spec, more = plugin["spec"]["template"]["spec"], patch["spec"]["template"]["spec"]
    spec["hostPID"] = more["hostPID"]
    spec["containers"][0]["env"] = [*spec["containers"][0]["env"], *more["containers"][0]["env"]]


def with_port(pod: JsonObject) -> None:
    pod["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": 12347}]


@pytest.mark.parametrize("component", ["usage", "watchdog-evict", "watchdog-kill"])
def test_where_it_is_read_there_is_nothing_to_say(component: str) -> None:
    api = reading(component)
    labels = {names.WATCHDOG: "evict"}
    world.seed(api, {"kind": "Namespace", "metadata": {"name": "team-a", "labels": labels}})
    assert world.lines(api) == []


def test_where_it_is_not_wanted_no_plugin_is_asked() -> None:
    api = world.healthy()
    assert world.lines(api) == []
    assert not [path for path in api.asked if PLUGIN in path]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (HIDDEN, "its device plugin does not see the processes of the node: it needs hostPID (manifests/usage)"),
        (kube.ForbiddenError("no"), "its device plugin cannot be asked: no"),
        (Reply(status=200, text='gpushare_plugin_usage_info{reading="on"} 1\n'), "its driver lists no processes"),
    ],
)
def test_a_node_of_which_nothing_is_known_is_named(reply: Reply | kube.KubeError, problem: str) -> None:
    [line] = world.lines(reading(b=reply))
    assert line.startswith(f"{HEAD}what is used on node node-b is not known: {problem} | kubectl -n {NS} logs -l ")


def test_plugins_that_may_not_be_listed_are_one_line() -> None:
    api = reading()
    path = f"/api/v1/namespaces/{NS}/pods"
    api.fail_next(lambda call: call.path == path, kube.ForbiddenError("no"), times=9)
    [line] = world.lines(api)
    assert line.startswith(f"error cluster-read pods of {PLUGIN} | cannot be read: no; not checked: usage | ")


def test_a_plugin_without_the_processes_of_its_node_is_one_line() -> None:
    api = reading(a=HIDDEN, b=HIDDEN)
    world.edit(api, "DaemonSet", PLUGIN, lambda each: each["spec"]["template"]["spec"].pop("hostPID"))
    [line] = world.lines(api)
    assert line.startswith(f"{HEAD}GPUSHARE_USAGE or GPUSHARE_WATCHDOG is set, and its pods do not see the processes")


def test_the_setting_of_all_components_counts_too() -> None:
    api = world.healthy()
    world.edit(api, "ConfigMap", names.CONFIG, lambda each: each["data"].update(GPUSHARE_WATCHDOG="report"))
    assert [line.split(" | ")[0] for line in world.lines(api)] == [HEAD.removesuffix(" | ")]
