"""How nodes hand over GPUs, line by line: what that asks of pods, and what it makes unnecessary."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.model.gpu import GpuHealth, HandOver, Limit
from gpushare.wire import hand_over
from gpushare.wire import inventory as inventory_wire
from testing.builders import make_allocation, make_container, make_grant, make_pod
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import NS, DoctorKube
from tests.unit.gpushare_cli.findings import Told

SUMMARY = f"configmap/{NS}/gpushare-hand-over"
INJECTS = "containerd 2.1.9 injects CDI devices"
NOT_NEEDED = "isolation.gpushare.dev is not needed there"


def publish(  # what a plugin may say
    api: DoctorKube,
    node: str,
    by: HandOver,
    reason: str = INJECTS,
    limit: Limit = Limit.ADVISORY,
    limit_reason: str = "",
) -> None:
    def change(found: JsonObject) -> None:
        inventory = inventory_wire.of_node(found)
        assert inventory is not None
        gpus = tuple(replace(gpu, limit=limit, limit_reason=limit_reason) for gpu in inventory.gpus)
        told = replace(inventory, gpus=gpus, hand_over=by, hand_over_reason=reason)
        found["metadata"]["annotations"][names.ANNOTATION_INVENTORY] = inventory_wire.encode(told)

    world.edit(api, "Node", node, change)


def tell(api: DoctorKube, word: str) -> None:
    world.edit(api, "ConfigMap", names.HAND_OVER, lambda found: found.update(hand_over.data(word)))


def refuse(api: DoctorKube, **data: str) -> None:
    world.edit(api, "ConfigMap", names.RUNTIME_CLASS_POLICY, lambda found: found["data"].update(data))


def without_isolation(api: DoctorKube) -> None:
    def change(config: JsonObject) -> None:
        config["webhooks"] = [each for each in config["webhooks"] if not each["name"].startswith("isolation.")]

    world.edit(api, "MutatingWebhookConfiguration", names.MUTATING_WEBHOOK, change)


def label(api: DoctorKube, node: str, **labels: str) -> None:
    wanted = {f"gpushare.dev/{key.replace('_', '-')}": value for key, value in labels.items()}
    world.edit(api, "Node", node, lambda found: found["metadata"]["labels"].update(wanted))


@pytest.fixture
def cdi() -> DoctorKube:
    """Every node hands over by CDI."""
    api = world.healthy()
    for node in ("node-a", "node-b"):
        publish(api, node, HandOver.CDI)
    tell(api, "cdi")
    return api


def test_where_all_is_by_cdi_it_says_what_is_not_needed(told: Told, cdi: DoctorKube) -> None:
    assert world.lines(cdi) == told()
    refuse(cdi, refuse="nothing")
    assert world.lines(cdi) == told()
    refuse(cdi, refuse="always")
    without_isolation(cdi)
    world.vanish(cdi, "RuntimeClass", "nvidia")
    assert world.lines(cdi) == told()


def test_each_way_is_told_with_its_nodes_and_its_reason(told: Told) -> None:
    api = world.healthy()
    for name in ("node-c", "node-d", "node-e", "node-f", "node-g"):
        world.gpu_node(api, name)
        publish(api, name, HandOver.CDI)
    publish(api, "node-b", HandOver.ENVVAR, "the node has no CDI spec of NVIDIA's")
    tell(api, "mixed")
    assert world.lines(api) == told()


def test_a_way_that_an_administrator_demands_in_vain_is_one_line(cdi: DoctorKube) -> None:
    why = "the node's label gpushare.dev/hand-over demands CDI, but containerd 1.6.20 does not inject CDI devices"

    def change(node: JsonObject) -> None:
        found = inventory_wire.of_node(node)
        assert found is not None
        gpus = tuple(replace(gpu, health=GpuHealth.UNHEALTHY, reason=why) for gpu in found.gpus)
        told = replace(found, gpus=gpus, hand_over_reason=why)
        node["metadata"]["annotations"][names.ANNOTATION_INVENTORY] = inventory_wire.encode(told)
        node["status"]["allocatable"] = world.allocatable(told)

    world.edit(cdi, "Node", "node-b", change)
    assert [line for line in world.lines(cdi) if "node/" in line] == [
        f"error hand-over node/node-b | no GPU of it is handed over: {why} | kubectl label node node-b --overwrite"
        " gpushare.dev/hand-over=envvar",
        f"ok hand-over node/node-a | hands GPUs over by cdi: {INJECTS}",
    ]


def mixed(api: DoctorKube) -> None:
    publish(api, "node-b", HandOver.ENVVAR)
    tell(api, "mixed")


def nvidia_default(api: DoctorKube) -> None:
    label(api, "node-b", nvidia_default_runtime="true")


def set_default(api: DoctorKube) -> None:
    setting = {"GPUSHARE_NVIDIA_DEFAULT_RUNTIME": "true"}
    world.edit(api, "ConfigMap", names.CONFIG, lambda found: found["data"].update(setting))
    label(api, "node-a", nvidia_default_runtime="false")


@pytest.mark.parametrize("change", [mixed, nvidia_default, set_default])
def test_as_long_as_one_node_needs_it_pods_without_gpus_come_past_the_webhook(
    told: Told, cdi: DoctorKube, change: Callable[[DoctorKube], None]
) -> None:
    change(cdi)
    assert NOT_NEEDED not in str(world.lines(cdi))
    without_isolation(cdi)
    assert world.lines(cdi, "isolation") == told()


def test_a_node_that_has_told_nothing_yet_counts_as_one_that_needs_it(cdi: DoctorKube) -> None:
    world.gpu_node(cdi, "node-c")
    world.edit(cdi, "Node", "node-c", lambda node: node["metadata"].pop("annotations"))
    assert NOT_NEEDED not in str(world.lines(cdi))
    assert "it says cdi of the nodes' hand-over, but it is mixed" in "".join(world.lines(cdi))


@pytest.mark.parametrize(("word", "said"), [("cdi", "cdi"), ("", "nothing"), ("later", "later")])
def test_a_word_that_is_not_that_of_the_nodes_is_told(word: str, said: str) -> None:
    api = world.healthy()
    tell(api, word)
    [line] = world.lines(api, "hand-over-summary")
    assert line.startswith(
        f"warning hand-over-summary {SUMMARY} | it says {said} of the nodes' hand-over, but it is envvar"
    )


def test_what_is_missing_is_told(told: Told) -> None:
    api = world.healthy()
    world.vanish(api, "ConfigMap", names.HAND_OVER)
    world.vanish(api, "ConfigMap", names.RUNTIME_CLASS_POLICY)
    assert world.lines(api) == told()


def test_a_refusal_that_meets_gpu_pods_is_told(told: Told) -> None:
    api = world.healthy()
    refuse(api, refuse="without-gpus")
    assert world.lines(api) == []
    refuse(api, refuse="always")
    assert world.lines(api) == told()
    mode = {"GPUSHARE_RUNTIME_CLASS_MODE": "if-exists"}
    world.edit(api, "ConfigMap", names.CONFIG, lambda found: found["data"].update(mode))
    assert world.lines(api) == told()
    world.edit(api, "ConfigMap", names.CONFIG, lambda found: found["data"].pop(*mode))
    refuse(api, names="nvidia-cdi, other")
    assert world.lines(api) == []
    refuse(api, refuse="alway", names="nvidia")
    assert world.lines(api) == told()


def test_a_runtime_class_of_nvidia_that_the_policies_do_not_know_is_told(told: Told) -> None:
    api = world.healthy()
    for name, handler in (("gpu", "nvidia"), ("nvidia-cdi", "nvidia-cdi"), ("kata", "kata-qemu-nvidia-gpu")):
        world.seed(api, {"kind": "RuntimeClass", "metadata": {"name": name}, "handler": handler})
    assert world.lines(api) == told()
    refuse(api, names="nvidia, gpu")
    assert world.lines(api) == []


def test_a_node_without_the_handler_that_gpu_pods_get_is_told(cdi: DoctorKube) -> None:
    handlers = {"runtimeHandlers": [{"name": ""}, {"name": "runc", "features": {}}]}
    world.edit(cdi, "Node", "node-a", lambda node: node["status"].update(handlers))
    assert [line for line in world.lines(cdi) if "error" in line] == []
    mixed(cdi)
    [line] = [line for line in world.lines(cdi) if "error" in line]
    assert line.startswith("error hand-over node/node-a | GPU pods get RuntimeClass nvidia, whose handler nvidia its ")
    handlers["runtimeHandlers"].append({"name": "nvidia"})
    world.edit(cdi, "Node", "node-a", lambda node: node["status"].update(handlers))
    assert [line for line in world.lines(cdi) if "error" in line] == []


def test_servers_before_conditions_have_neither_policy_nor_a_webhook_to_switch_off(told: Told) -> None:
    api = world.healthy("production-1.25", "v1.25.0")
    publish(api, "node-a", HandOver.CDI)
    publish(api, "node-b", HandOver.CDI)
    tell(api, "cdi")
    assert world.lines(api) == told()
    skipped = {each.check.id: each.skipped for each in world.diagnosis(api).results if each.skipped}
    for check in ("server-policies", "runtime-class-policy"):
        assert skipped[check] == "this server has no such policies"


def demanding(name: str, **fields: object) -> JsonObject:
    return make_pod(name=name, namespace="team-a", annotations={names.ANNOTATION_LIMIT: "enforced"}, **fields)  # type: ignore[arg-type]  # the test's own


WHY = "says what holds the limits of its GPUs, and why nothing stronger does; see docs/limits.md"


def test_a_demand_that_no_gpu_meets_is_told_where_it_is_made() -> None:
    api = world.healthy()
    world.seed(api, {"kind": "Namespace", "metadata": {"name": "team-b", "labels": {names.LABEL_LIMIT: "enforced"}}})
    world.seed(api, demanding("waits"))
    publish(api, "node-a", HandOver.ENVVAR, "", Limit.WATCHDOG)
    assert world.lines(api, "limits") == [
        f"warning limits namespace/{name} | GPU pods there demand an enforced limit and stay Pending: no healthy GPU"
        f" has one (4 advisory, 4 watchdog) | gpushare explain POD {WHY}"
        for name in ("team-a", "team-b")
    ]
    publish(api, "node-a", HandOver.ENVVAR, "", Limit.CGROUP)
    assert world.lines(api, "limits") == []


def test_whole_gpus_and_requests_that_cannot_be_read_meet_no_demand() -> None:
    api = world.with_whole_gpus("production", "v1.30.2", "1.30")
    for name, limits in (("whole", {names.GPU: 1}), ("odd", {names.GPU_MEM: "1.5"})):
        container = make_container(resources={"limits": limits})
        notes = {names.ANNOTATION_LIMIT: "enforced"}
        world.seed(api, make_pod(container, name=name, namespace="team-a", annotations=notes))
    assert world.lines(api, "limits") == []


def test_why_limits_are_not_stronger_is_told_for_all_nodes_together(told: Told) -> None:
    api = world.healthy()
    for node, reason in (("node-a", "cgroup: old driver"), ("node-b", "cgroup: old driver")):
        publish(api, node, HandOver.ENVVAR, "", Limit.MPS, reason)
    assert world.lines(api, "limit-strength") == told()


def test_a_pod_whose_limit_is_enforced_no_more_is_told(told: Told) -> None:
    api = world.healthy()
    publish(api, "node-b", HandOver.ENVVAR, "", Limit.CGROUP)
    notes = {names.ANNOTATION_LIMIT: "enforced"}
    for name, node, gpu in (("loose", "node-a", 1), ("held", "node-b", 0)):
        held = replace(make_allocation(name, make_grant(gpu), node=node))
        world.seed(api, world.bound_pod(name, node=node, held_by=held, annotations=notes, phase="Running"))
    assert world.lines(api, "limits") == told()


def test_a_part_of_a_mig_instance_does_not_meet_the_demand() -> None:
    api = world.healthy()
    publish(api, "node-b", HandOver.ENVVAR, "", Limit.MIG)
    held = make_allocation("part", make_grant(0), node="node-b")
    notes = {names.ANNOTATION_LIMIT: "enforced"}
    world.seed(api, world.bound_pod("part", node="node-b", held_by=held, annotations=notes, phase="Running"))
    [line] = world.lines(api, "limits")
    assert "no longer has one on node node-b (GPU 0: advisory)" in line


def test_configurations_of_nvidias_plugin_that_must_not_be_read_are_told(told: Told) -> None:
    api = world.healthy()
    api.fail_next(lambda call: "gpu-operator/configmaps" in call.path, kube.ForbiddenError("no"))
    assert world.lines(api) == told()
