"""Whether nodes share what they have, and how they hand it over, line by line."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Reply
from gpushare.model.gpu import GpuHealth, HandOver, LeftOut, Limit, NodeInventory
from gpushare.units import MemoryUnit
from gpushare.wire import hand_over, inventory as inventory_wire
from testing.builders import make_allocation, make_container, make_gpu, make_grant, make_inventory, make_pod
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import PLUGIN, Change, edited, forbidden, missing, put, seeded, setting, together
from testing.manifests import tree
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.clusters import unhealthy_gpus
from tests.unit.gpushare_cli.findings import Told


def annotate(key: str, value: str) -> Change:
    return put("Node", "node-b", "metadata", "annotations", key, value=value)


def amount(resource: str, value: str | None = None, name: str = "node-b") -> Change:
    return put("Node", name, "status", "allocatable", resource, value=value)


def tells(node: str, change: Callable[[NodeInventory], NodeInventory]) -> Change:
    """Its plugin publishes another inventory, which the kubelet counts as well."""

    def edit(found: JsonObject) -> None:
        before = inventory_wire.of_node(found)
        assert before is not None
        inventory = change(before)
        found["metadata"]["annotations"][names.ANNOTATION_INVENTORY] = inventory_wire.encode(inventory)
        found["status"]["allocatable"] = world.allocatable(inventory)

    return edited("Node", node, edit)


def publish(inventory: NodeInventory) -> Change:
    return tells("node-b", lambda _: inventory)


def with_faulty_gpu(reason: str = "") -> NodeInventory:
    sound = make_inventory(15, 15, node="node-b")
    return replace(sound, gpus=(sound.gpus[0], replace(make_gpu(1, health=GpuHealth.UNHEALTHY), reason=reason)))


def claimed(reason: str = "") -> NodeInventory:
    """One whose GPUs are all shared by ResourceClaims."""
    inventory = with_faulty_gpu(reason) if reason else make_inventory(15, 15, node="node-b")
    return replace(inventory, gpus=(), dra=inventory.gpus)


WITH_CLAIMS = edited(
    "DaemonSet",
    PLUGIN,
    lambda plugin: plugin["spec"]["template"]["spec"]["containers"][0]["env"].append(
        {"name": "GPUSHARE_DRA", "value": "true"}
    ),
)


def oversubscribed(limit: Limit) -> NodeInventory:
    sound = make_inventory(16, node="node-b")
    return replace(sound, gpus=(replace(sound.gpus[0], extra_mib=8 * 1024, limit=limit),))


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
        seeded(unhealthy_gpus("node-b", "2")),
        publish(claimed("its mode changes to device-plugin when no ResourceClaim holds it any more")),
        together(publish(claimed("the API server has no ResourceSlices")), seeded(unhealthy_gpus("node-b", "1"))),
        publish(with_faulty_gpu(reason="its mode changes to dra when no pod holds it any more")),
    ],
    "gpu-modes": [
        annotate(names.ANNOTATION_MODE, text) for text in ("dra,GPU-1=shared", "GPU-1=dra", "H100=device-plugin")
    ],
    "gpu-cordon": [
        annotate(names.ANNOTATION_CORDON, "0,GPU-3"),
        together(annotate(names.ANNOTATION_CORDON, "GPU-3"), annotate(names.ANNOTATION_HELD, "GPU-3")),
        annotate(names.ANNOTATION_CORDON, "7, GPU-x"),
        together(publish(claimed()), annotate(names.ANNOTATION_CORDON, "GPU-0,1")),
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


@pytest.mark.parametrize(
    "change",
    [
        publish(claimed()),
        annotate(names.ANNOTATION_MODE, "device-plugin,Tesla T4=device-plugin"),
        together(WITH_CLAIMS, annotate(names.ANNOTATION_MODE, "dra,GPU-1=device-plugin")),
    ],
)
def test_gpus_that_claims_share_are_right(change: Change) -> None:
    assert world.after(change) == []


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
    page = world.METRICS[CONTROLLER].replace("} 7.0", "} " + count)
    page += f'{ASKED}{{outcome="fits",verb="filter"}} 9.0\n{ASKED}{{outcome="gpu",verb="{names.OTHERS_VERB}"}} 9.0\n'
    return world.answers(CONTROLLER, "metrics", page)


def taint(*nodes: str, key: str = names.GPU_MEM, effect: str = "NoSchedule") -> Change:
    spec = {"taints": [{"key": key, "effect": effect}]}
    return together(*(put("Node", name, "spec", value=spec) for name in nodes))


def reads(component: str = "usage", **replies: Reply | kube.KubeError) -> Change:
    """A component was applied. Args: replies: by the last letter of the node; all else is good."""

    def change(api: world.DoctorKube) -> None:
        world.edit(api, "DaemonSet", PLUGIN, partial(apply, tree.patches(component)[0]))
        for letter in "ab":
            name = f"{PLUGIN}-node-{letter}"
            put("Pod", name, "spec", "containers", 0, "ports", value=PORTS)(api)
            api.replies[kube.pod_path(world.NS, f"{name}:12347", "proxy/metrics")] = replies.get(letter, GOOD)

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
        missing("Node", *BOTH), missing("Pod", *PODS), UNLABELLED, put("Node", "node-c", "metadata", "annotations")
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
    "plugins that may not be listed are one line": together(reads(), forbidden(f"/api/v1/namespaces/{world.NS}/pods")),
    "a plugin without the processes of its node is one line": together(
        reads(a=HIDDEN, b=HIDDEN), put("DaemonSet", PLUGIN, *POD, "hostPID")
    ),
    "the setting of all components counts too": setting(WATCHDOG="report"),
}


INJECTS = "containerd 2.1.9 injects CDI devices"
IN_VAIN = "the node's label gpushare.dev/hand-over demands CDI, but containerd 1.6.20 does not inject CDI devices"
ENFORCED = {names.ANNOTATION_LIMIT: "enforced"}


def hands_over(node: str, by: HandOver = HandOver.CDI, why: str = INJECTS, **of_gpus: Any) -> Change:
    def change(known: NodeInventory) -> NodeInventory:
        gpus = tuple(replace(gpu, **of_gpus) for gpu in known.gpus)
        return replace(known, gpus=gpus, hand_over=by, hand_over_reason=why)

    return tells(node, change)


def limits(node: str, limit: Limit, reason: str = "") -> Change:
    return hands_over(node, HandOver.ENVVAR, "", limit=limit, limit_reason=reason)


def tell(word: str) -> Change:
    return edited("ConfigMap", names.HAND_OVER, lambda found: found.update(hand_over.data(word)))


def refuse(**data: str) -> Change:
    return edited("ConfigMap", names.RUNTIME_CLASS_POLICY, lambda found: found["data"].update(data))


def nvidia_default(node: str, value: str) -> Change:
    return put("Node", node, "metadata", "labels", "gpushare.dev/nvidia-default-runtime", value=value)


def new_node(name: str, change: Change) -> Change:
    return together(partial(world.gpu_node, name=name), change)


def classes(**handlers: str) -> Change:
    named = {name.replace("_", "-"): handler for name, handler in handlers.items()}
    return seeded(*({"kind": "RuntimeClass", "metadata": {"name": name}, "handler": named[name]} for name in named))


def has_handlers(*handlers: str) -> Change:
    found = [{"name": name} for name in ("", "runc", *handlers)]
    return put("Node", "node-a", "status", "runtimeHandlers", value=found)


def holds(name: str, gpu: int, node: str = "node-b") -> Change:
    """A pod that demands enforced limits."""
    held = make_allocation(name, make_grant(gpu), node=node)
    return seeded(world.bound_pod(name, node=node, held_by=held, annotations=ENFORCED, phase="Running"))


def waits(name: str, **amounts: object) -> Change:
    container = make_container(resources={"limits": amounts}) if amounts else make_container(gpu_mem=3)
    return seeded(make_pod(container, name=name, namespace="team-a", annotations=ENFORCED))


WITHOUT_ISOLATION = world.without_webhook("isolation.gpushare.dev")
TEAM_B = {"kind": "Namespace", "metadata": {"name": "team-b", "labels": {names.LABEL_LIMIT: "enforced"}}}
DEMANDS = together(seeded(TEAM_B), waits("waits"))
CDI = together(hands_over("node-a"), hands_over("node-b"), tell("cdi"))
MIXED = together(hands_over("node-b", HandOver.ENVVAR), tell("mixed"))
NVIDIA_DEFAULT = together(setting(NVIDIA_DEFAULT_RUNTIME="true"), nvidia_default("node-a", "false"))
OTHERS = classes(gpu="nvidia", nvidia_cdi="nvidia-cdi", kata="kata-qemu-nvidia-gpu")
OLD_DRIVER = "cgroup: old driver"
OF_HAND_OVER: dict[str, Change] = {
    "where all is by CDI it says what is not needed": CDI,
    "also where nothing is refused": together(CDI, refuse(refuse="nothing")),
    "and that is right": together(CDI, refuse(refuse="always"), WITHOUT_ISOLATION, missing("RuntimeClass", "nvidia")),
    "each way is told with its nodes and its reason": together(
        *(new_node(f"node-{letter}", hands_over(f"node-{letter}")) for letter in "cdefg"),
        hands_over("node-b", HandOver.ENVVAR, "the node has no CDI spec of NVIDIA's"),
        tell("mixed"),
    ),
    "a way that an administrator demands in vain is one line": together(
        CDI, hands_over("node-b", HandOver.CDI, IN_VAIN, health=GpuHealth.UNHEALTHY, reason=IN_VAIN)
    ),
    "isolation is needed as long as one node hands over otherwise": together(CDI, MIXED),
    "and missed then": together(CDI, MIXED, WITHOUT_ISOLATION),
    "also as long as NVIDIA's runtime is the default of one": together(CDI, nvidia_default("node-b", "true")),
    "and missed there": together(CDI, nvidia_default("node-b", "true"), WITHOUT_ISOLATION),
    "or of those that do not say otherwise": together(CDI, NVIDIA_DEFAULT),
    "and missed on those": together(CDI, NVIDIA_DEFAULT, WITHOUT_ISOLATION),
    "a node that has told nothing yet counts as one that needs it": together(
        CDI, new_node("node-c", put("Node", "node-c", "metadata", "annotations"))
    ),
    "a word that is not that of the nodes is told": tell("cdi"),
    "so is none": tell(""),
    "and one that no one knows": tell("later"),
    "what is missing is told": together(
        missing("ConfigMap", names.HAND_OVER), missing("ConfigMap", names.RUNTIME_CLASS_POLICY)
    ),
    "a refusal that spares GPU pods is right": refuse(refuse="without-gpus"),
    "one that meets GPU pods is told": refuse(refuse="always"),
    "also where the webhook writes the class": together(
        refuse(refuse="always"), setting(RUNTIME_CLASS_MODE="if-exists")
    ),
    "but not of another class": refuse(refuse="always", names="nvidia-cdi, other"),
    "a word that counts as always is told": refuse(refuse="alway", names="nvidia"),
    "a RuntimeClass of NVIDIA that the policies do not know is told": OTHERS,
    "and one that they know is right": together(OTHERS, refuse(names="nvidia, gpu")),
    "a handler that no GPU pod gets is not missed": together(CDI, has_handlers()),
    "one that they get is": together(CDI, has_handlers(), MIXED),
    "where it is there, all is well": together(CDI, MIXED, has_handlers("nvidia")),
    "a demand that no GPU meets is told where it is made": together(DEMANDS, limits("node-a", Limit.WATCHDOG)),
    "and not where one meets it": together(DEMANDS, limits("node-a", Limit.CGROUP)),
    "why limits are not stronger is told for all nodes together": together(
        *(limits(node, Limit.MPS, OLD_DRIVER) for node in ("node-a", "node-b"))
    ),
    "a pod whose limit is enforced no more is told": together(
        limits("node-b", Limit.CGROUP), holds("loose", 1, "node-a"), holds("held", 0)
    ),
    "a part of a MIG instance does not meet the demand": together(limits("node-b", Limit.MIG), holds("part", 0)),
    "configurations of NVIDIA's plugin that must not be read are told": lambda api: api.fail_next(
        lambda call: "gpu-operator/configmaps" in call.path, kube.ForbiddenError("no")
    ),
}


@pytest.mark.parametrize(("case", "change"), {**CASES, **OF_HAND_OVER}.items())
def test_what_is_said_of_nodes(case: str, change: Change) -> None:
    assert (world.after(change) or ["nothing"]) == findings.golden("doctor", case)


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


def test_whole_gpus_and_requests_that_cannot_be_read_meet_no_demand() -> None:
    api = world.with_whole_gpus("production", "v1.30.2", "1.30")
    together(waits("whole", **{names.GPU: 1}), waits("odd", **{names.GPU_MEM: "1.5"}))(api)
    assert world.lines(api, "limits") == []


def test_servers_before_conditions_have_neither_policy_nor_a_webhook_to_switch_off(told: Told) -> None:
    api = world.healthy("production-1.25", "v1.25.0")
    CDI(api)
    assert world.lines(api) == told()
    skipped = {each.check.id: each.skipped for each in world.diagnosis(api).results if each.skipped}
    for check in ("server-policies", "runtime-class-policy"):
        assert skipped[check] == "this server has no such policies"
