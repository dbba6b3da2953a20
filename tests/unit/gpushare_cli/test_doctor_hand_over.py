"""How nodes hand over GPUs, line by line: what that asks of pods, and what it makes unnecessary."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.model.gpu import GpuHealth, HandOver, Limit
from gpushare.wire import hand_over
from gpushare.wire import inventory as inventory_wire
from testing.builders import make_allocation, make_container, make_grant, make_pod
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import Change, edited, missing, put, seeded, setting, together, without_webhook
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.findings import Told

INJECTS = "containerd 2.1.9 injects CDI devices"
IN_VAIN = "the node's label gpushare.dev/hand-over demands CDI, but containerd 1.6.20 does not inject CDI devices"
ENFORCED = {names.ANNOTATION_LIMIT: "enforced"}


def publish(node: str, by: HandOver = HandOver.CDI, why: str = INJECTS, **of_gpus: Any) -> Change:
    """What a plugin may say."""

    def change(found: JsonObject) -> None:
        inventory = inventory_wire.of_node(found)
        assert inventory is not None
        gpus = tuple(replace(gpu, **of_gpus) for gpu in inventory.gpus)
        told = replace(inventory, gpus=gpus, hand_over=by, hand_over_reason=why)
        found["metadata"]["annotations"][names.ANNOTATION_INVENTORY] = inventory_wire.encode(told)
        found["status"]["allocatable"] = world.allocatable(told)

    return lambda api: world.edit(api, "Node", node, change)


def limits(node: str, limit: Limit, reason: str = "") -> Change:
    return publish(node, HandOver.ENVVAR, "", limit=limit, limit_reason=reason)


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


WITHOUT_ISOLATION = without_webhook("isolation.gpushare.dev")
TEAM_B = {"kind": "Namespace", "metadata": {"name": "team-b", "labels": {names.LABEL_LIMIT: "enforced"}}}
DEMANDS = together(seeded(TEAM_B), waits("waits"))
CDI = together(publish("node-a"), publish("node-b"), tell("cdi"))
MIXED = together(publish("node-b", HandOver.ENVVAR), tell("mixed"))
NVIDIA_DEFAULT = together(setting(NVIDIA_DEFAULT_RUNTIME="true"), nvidia_default("node-a", "false"))
OTHERS = classes(gpu="nvidia", nvidia_cdi="nvidia-cdi", kata="kata-qemu-nvidia-gpu")
OLD_DRIVER = "cgroup: old driver"
CASES: dict[str, Change] = {
    "where all is by CDI it says what is not needed": CDI,
    "also where nothing is refused": together(CDI, refuse(refuse="nothing")),
    "and that is right": together(CDI, refuse(refuse="always"), WITHOUT_ISOLATION, missing("RuntimeClass", "nvidia")),
    "each way is told with its nodes and its reason": together(
        *(new_node(f"node-{letter}", publish(f"node-{letter}")) for letter in "cdefg"),
        publish("node-b", HandOver.ENVVAR, "the node has no CDI spec of NVIDIA's"),
        tell("mixed"),
    ),
    "a way that an administrator demands in vain is one line": together(
        CDI, publish("node-b", HandOver.CDI, IN_VAIN, health=GpuHealth.UNHEALTHY, reason=IN_VAIN)
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


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_of_the_hand_over(case: str) -> None:
    assert (world.after(CASES[case]) or ["nothing"]) == findings.golden("doctor", case)


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
