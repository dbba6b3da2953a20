"""Pods that ask for no share: kept away from GPUs, and otherwise left alone."""

import pytest

from testing.reviews import ALL, RULES, VOID, Json, container, debugged, pod
from webhook import mutation
from webhook.mutation import Denied, Mutated, Untouched
from webhook.rules import Rules


def result(value: Json) -> Json:
    decision = mutation.mutate(value, RULES)
    assert isinstance(decision, Mutated), decision
    return decision.pod


def test_every_container_is_isolated_and_nothing_else_changes() -> None:
    before = pod(container("a"), container("b", env=[ALL]), init=[container("i", env=None)], schedulerName="mine")
    after = result(before)
    assert [one["env"] for one in (*after["spec"]["initContainers"], *after["spec"]["containers"])] == [[VOID]] * 3
    stripped = [{k: v for k, v in one.items() if k != "env"} for one in after["spec"]["containers"]]
    assert stripped == [container("a"), container("b")]
    assert {k: v for k, v in after["spec"].items() if "ontainers" not in k} == {"schedulerName": "mine"}
    assert after["metadata"] == before["metadata"]


def test_an_isolated_pod_is_untouched() -> None:
    assert mutation.mutate(pod(container(env=[{"name": "X", "value": "1"}, VOID])), RULES) == Untouched()


@pytest.mark.parametrize(
    "env",
    [
        [VOID, VOID],
        [VOID, ALL],
        [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}],
        [{"name": "NVIDIA_VISIBLE_DEVICES", "value": ""}],
        [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}],
        [{"name": "NVIDIA_VISIBLE_DEVICES", "value": 3}],
        [],
    ],
)
def test_one_entry_says_void_whatever_was_there(env: list[Json]) -> None:
    assert result(pod(container(env=env)))["spec"]["containers"][0]["env"] == [VOID]


def test_a_source_of_variables_stays_because_the_entry_beats_it() -> None:
    sources = [{"configMapRef": {"name": "gpus"}}]
    assert result(pod(container(envFrom=sources)))["spec"]["containers"][0] == container(envFrom=sources, env=[VOID])


@pytest.mark.parametrize(
    "resources",
    [
        {"limits": {"nvidia.com/gpu": "1"}},
        {"limits": {"nvidia.com/gpu": 2}},
        {"requests": {"nvidia.com/mig-1g.5gb": "1"}},
        {"limits": {"cpu": "1", "nvidia.com/gpu.shared": "1k"}},
    ],
)
def test_a_container_of_nvidias_plugin_is_left_to_that_plugin(resources: Json) -> None:
    """Neither void, which would beat the plugin's choice, nor the author's value, which would too."""
    other = {"name": "X", "value": "1"}
    before = pod(container(env=[other, ALL], resources=resources))
    assert result(before)["spec"]["containers"][0]["env"] == [other]
    assert mutation.mutate(pod(container(env=[other], resources=resources)), RULES) == Untouched()


@pytest.mark.parametrize(
    "resource", ["nvidia.com/hostdev", "nvidia.com/rdma", "nvidia.com/gpu2", "nvidia.com/gpu.sharedx", "nvidia.com/mig"]
)
def test_only_plugins_that_choose_devices_are_left_to_do_so(resource: str) -> None:
    """Another one, say for network cards, sets no variable, and the image's "all" would count."""
    before = pod(container(env=[ALL], resources={"limits": {resource: "1"}}))
    assert result(before)["spec"]["containers"][0]["env"] == [VOID]


def test_a_preset_node_cannot_smuggle_a_resource_that_the_node_lacks() -> None:
    before = pod(container(resources={"limits": {"nvidia.com/gpu": "1"}}))
    before["spec"]["nodeName"] = "node-a"
    decision = mutation.mutate(before, RULES)
    assert isinstance(decision, Denied)
    assert [str(error) for error in decision.errors] == [
        "spec.nodeName: a preset node by-passes the scheduler, but spec.containers[0] asks for nvidia.com/gpu;"
        " on a node without that resource it would see all GPUs; remove it and choose the node by spec.nodeSelector or"
        " node affinity on kubernetes.io/hostname"
    ]


@pytest.mark.parametrize("amount", ["0", 0, "0.0", "0m", "-1", -1, "", True, None, [1], "x"])
def test_an_amount_that_is_not_positive_makes_no_container_of_nvidias_plugin(amount: object) -> None:
    pod_of_nothing = pod(container(env=[ALL], resources={"limits": {"nvidia.com/gpu": amount}}))
    assert result(pod_of_nothing)["spec"]["containers"][0]["env"] == [VOID]


def test_which_plugins_there_are_is_a_setting() -> None:
    asks = container(resources={"limits": {"vendor.example/gpu": "1"}})
    rules = Rules(resource_config=RULES.resource_config, foreign_resources=("vendor.example/*",))
    assert isinstance(mutation.mutate(pod(asks), RULES), Mutated)
    assert mutation.mutate(pod(asks), rules) == Untouched()
    assert isinstance(
        mutation.mutate(pod(asks), Rules(resource_config=RULES.resource_config, foreign_resources=())), Mutated
    )


def test_a_forged_binding_and_the_label_are_stripped() -> None:
    before = pod(
        container(env=[VOID]),
        annotations={"devices.gpushare.dev/a": "GPU-1", "keep": "me"},
        labels={"gpushare.dev/managed": "true", "app": "x"},
    )
    after = result(before)
    assert (after["metadata"]["annotations"], after["metadata"]["labels"]) == ({"keep": "me"}, {"app": "x"})


@pytest.mark.parametrize(
    "marks",
    [
        {"labels": {"aliyun.com/gpu-count": "two"}},
        {"annotations": {"gpushare.dev/gpus": "-1"}},
        {"annotations": {"gpushare.dev/gpu-policy": "fastest"}},
    ],
)
def test_marks_that_mean_nothing_without_a_request_refuse_no_pod(marks: dict[str, dict[str, str]]) -> None:
    assert mutation.mutate(pod(container(env=[VOID]), **marks), RULES) == Untouched()  # type: ignore[arg-type] # one of two


def test_a_preset_node_is_no_matter_here() -> None:
    assert mutation.mutate(pod(container(env=[VOID]), nodeName="n1"), RULES) == Untouched()


def test_privilege_is_no_matter_here() -> None:
    decision = mutation.mutate(pod(container(securityContext={"privileged": True})), RULES)
    assert isinstance(decision, Mutated)
    assert decision.warnings == ()


def test_the_author_is_told_that_devices_were_taken_away() -> None:
    decision = mutation.mutate(pod(container(env=[ALL])), RULES)
    assert isinstance(decision, Mutated)
    assert decision.warnings == (
        "container a: NVIDIA_VISIBLE_DEVICES is set by gpushare to no GPU, because it asks for none; 'all' was removed",
    )


def test_the_nodes_own_resource_counts_as_a_request_and_is_refused() -> None:
    decision = mutation.mutate(pod(container(resources={"requests": {"aliyun.com/gpu-count": "1"}})), RULES)
    assert isinstance(decision, Denied)
    assert decision.errors[0].path == "spec.containers[0].resources.requests[aliyun.com/gpu-count]"


def test_new_ephemeral_containers_are_isolated() -> None:
    decision = mutation.mutate_ephemeral(debugged(container("d", env=[ALL])), debugged())
    assert isinstance(decision, Mutated)
    assert decision.pod == debugged(container("d", env=[VOID]))
    assert decision.warnings == (
        "container d: NVIDIA_VISIBLE_DEVICES is set by gpushare to no GPU, because it asks for none; 'all' was removed",
    )


def test_ephemeral_containers_that_were_there_before_cannot_be_changed_any_more() -> None:
    before = debugged(container("old"))
    decision = mutation.mutate_ephemeral(debugged(container("old"), container("d")), before)
    assert isinstance(decision, Mutated)
    assert decision.pod == debugged(container("old"), container("d", env=[VOID]))


@pytest.mark.parametrize("spec", [{}, {"ephemeralContainers": None}, {"ephemeralContainers": []}])
def test_a_pod_without_ephemeral_containers_is_untouched(spec: Json) -> None:
    assert mutation.mutate_ephemeral(pod(container("a"), **spec), pod(container("a"))) == Untouched()


def test_ephemeral_containers_that_cannot_be_read_are_refused() -> None:
    decision = mutation.mutate_ephemeral(pod(container("a"), ephemeralContainers={}), pod(container("a")))
    assert isinstance(decision, Denied)
    assert str(decision.errors[0]) == (
        "spec.ephemeralContainers: expected a list, found an object; see kubectl explain pod.spec.ephemeralContainers"
    )


@pytest.mark.parametrize("key", ["cdi.k8s.io/sly", "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.a"])
def test_devices_chosen_by_cdi_annotations_are_removed_with_a_warning(key: str) -> None:
    before = pod(container(env=[VOID]), annotations={key: "nvidia.com/gpu=all", "team": "a"})
    decision = mutation.mutate(before, RULES)
    assert isinstance(decision, Mutated)
    assert decision.pod["metadata"]["annotations"] == {"team": "a"}
    assert decision.warnings == (f"annotations removed, because they choose devices past the scheduler: {key}",)
