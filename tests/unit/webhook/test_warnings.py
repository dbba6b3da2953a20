"""What the author of a pod that is admitted is told when it is created."""

import difflib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from gpushare.units import ResourceConfig
from gpushare.wire import requests
from testing.reviews import ALL, RULES, VOID, WHOLE, Json, asking, container, mutated, pod, visible, warnings
from webhook import mutation

PRESET = (
    "spec.nodeName bypasses the scheduler, which looks for free GPUs: the pod waits on that node until they are free,"
    " or forever if they never fit; better choose it by spec.nodeSelector or node affinity on kubernetes.io/hostname"
)


def limits(amounts: Json, name: str = "a", **fields: object) -> Json:
    return container(name, resources={"limits": amounts}, **fields)


def told(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None) -> tuple[str, ...]:
    return warnings(pod(asking("main", mem=3), annotations=annotations or {}, labels=labels or {}), WHOLE)


def test_the_author_is_told_what_privilege_means() -> None:
    privileged: Json = {"securityContext": {"privileged": True}}
    result = warnings(pod(container("a", "3", **privileged), container("b", securityContext={"privileged": False})))
    assert result == ("container a is privileged: it can reach all GPUs of its node, not only those granted to it",)
    assert warnings(pod(container(**privileged))) == ()


@pytest.mark.parametrize(
    ("ours", "other"), [("aliyun.com/gpu-mem", "nvidia.com/gpu"), ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb")]
)
def test_the_author_is_told_that_a_container_gets_only_one_plugins_gpus(ours: str, other: str) -> None:
    assert warnings(pod(limits({ours: 1, other: "1"})), WHOLE if other != "nvidia.com/gpu" else RULES) == (
        f"container a asks for {ours} and for another plugin's GPUs ({other}); it will see only those of the former",
    )


@pytest.mark.parametrize("length", [1, 30, 63, 300])
def test_warnings_stay_within_what_kubernetes_shows_whole(length: int) -> None:
    name = "c" * length
    forged = {f"devices.gpushare.dev/{name}{i}": "x" for i in range(5)}
    both = {"aliyun.com/gpu-mem": "3", "nvidia.com/gpu": "1"}
    privileged = limits(both, name, env=[ALL], securityContext={"privileged": True})
    lengths = [len(warning) for warning in warnings(pod(privileged, annotations=forged))]
    assert 0 < max(lengths) <= 256 >= len(PRESET)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (
            "gpushare.dev/gpu-modell",
            "annotation gpushare.dev/gpu-modell is none that gpushare knows; it is ignored;"
            " do you mean gpushare.dev/gpu-model?",
        ),
        ("gpushare.dev/x", "annotation gpushare.dev/x is none that gpushare knows; it is ignored"),
        ("other.gpushare.dev/main", "annotation other.gpushare.dev/main is none that gpushare knows; it is ignored"),
        ("aliyun.com/gpu-count", "aliyun.com/gpu-count means something as a label only; it is ignored"),
    ],
)
def test_an_annotation_that_no_one_reads_is_told(annotation: str, message: str) -> None:
    assert told(annotations={annotation: "2"}) == (message,)


def test_marks_that_no_one_reads_there_are_told() -> None:
    for key in ["gpushare.dev/gpus", "gpushare.dev/watchdog"]:
        assert told(labels={key: "2"}) == (f"{key} means something as an annotation only; it is ignored",)
    message = "annotation gpushare.dev/watchdog: expected report, evict or kill, found 'Kill'; it is ignored"
    assert told({"gpushare.dev/watchdog": "Kill"}) == (message,)
    assert told({"gpushare.dev/watchdog": "kill", "gpushare.dev/gpus": "2", "gpushare.dev/gpu-policy": "spread"}) == ()
    for key in ["gpushare.devx/y", "example.com/gpu-model", "gpushare.dev", "app"]:
        assert told(annotations={key: "x"}, labels={key: "x"}) == ()


def test_thousands_of_unknown_names_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def counted(word: str, known: Iterable[str], **options: Any) -> list[str]:
        compared.append(word)
        return difflib.get_close_matches(word, list(known), **options)

    monkeypatch.setattr(mutation, "difflib", type("Counting", (), {"get_close_matches": staticmethod(counted)}))
    found = told({f"gpushare.dev/gpu-model{i:05}": "" for i in range(20_000)}, {"gpushare.dev/gpus": "", "x": "y"})
    assert len(found) == 9
    assert found[7:] == (
        "annotation gpushare.dev/gpu-model00007 is none that gpushare knows; it is ignored;"
        " do you mean gpushare.dev/gpu-model?",
        "and 19993 more labels and annotations that gpushare does not read",
    )
    assert compared == [f"gpu-model{i:05}" for i in range(8)]
    found = told(dict.fromkeys([f"gpushare.dev/{letter}" for letter in "abcde"], ""), {"gpushare.dev/f": ""})
    assert [text.split()[1] for text in found] == [f"gpushare.dev/{letter}" for letter in "abcdef"]


def test_a_name_that_is_too_long_for_kubernetes_is_compared_with_nothing() -> None:
    [text] = told({"gpushare.dev/" + "gpu-model" * 20_000: ""})
    assert text.startswith("annotation gpushare.dev/gpu-modelgpu-model")
    assert (len(text), text[-4:]) == (256, " ...")


@pytest.mark.parametrize(
    ("resource", "meant"),
    [
        ("aliyun.com/gpu-memory", "aliyun.com/gpu-mem"),
        ("nano-gpu/gpu-percentage", "nano-gpu/gpu-percent"),
        ("nvidia.com/gpumem", "aliyun.com/gpu-mem in GiB, where HAMi counts MiB"),
    ],
)
def test_the_author_of_a_misspelt_resource_is_told_what_was_meant(resource: str, meant: str) -> None:
    text = f"container a: gpushare does not know {resource} and gives no GPU for it; do you mean {meant}?"
    assert warnings(pod(limits({"cpu": "1", resource: "3"}))) == (text,)
    assert warnings(pod(asking("b", mem=1), init=[limits({resource: "3"})])) == (text,)
    assert warnings(pod(container(), limits({resource: 1})), replace(RULES, foreign_resources=(resource,))) == ()


def test_of_many_a_few_are_compared_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def counted(resource: str, resource_config: ResourceConfig) -> str | None:
        compared.append(resource)
        return "aliyun.com/gpu-mem" if resource.startswith("aliyun.com/") else None

    monkeypatch.setattr(requests, "meant", counted)
    assert len(warnings(pod(limits({f"aliyun.com/gpumem{i}": 1 for i in range(10_000)})))) == 8
    assert len(compared) <= 9
    compared.clear()
    assert warnings(pod(limits({f"example.com/x{i}": 1 for i in range(10_000)}))) == ()
    assert len(compared) == 64


@pytest.mark.parametrize("scheduler", ["jupyterhub-user-scheduler", "volcano"])
def test_its_author_is_told_what_happens_and_what_to_do(scheduler: str) -> None:
    """Of a GPU pod that names a scheduler which does not ask this project."""
    value = pod(asking(mem=1), schedulerName=scheduler)
    assert warnings(value) == (
        f"spec.schedulerName {scheduler} does not ask gpushare which GPUs are free: the pod waits on the node that it"
        " chooses until they are, or forever; remove it, or write gpushare-scheduler",
    )
    assert mutated(value)["spec"]["schedulerName"] == scheduler
    assert warnings(pod(container(), schedulerName=scheduler)) == ()
    assert warnings(value, replace(RULES, other_schedulers=(scheduler,))) == ()


def test_schedulers_that_ask_us_need_no_word() -> None:
    for scheduler in [None, "", "default-scheduler", "gpushare-scheduler"]:
        value = pod(asking(mem=1), schedulerName=scheduler)
        assert warnings(value) == ()
        assert mutated(value)["spec"]["schedulerName"] == "gpushare-scheduler"
    for scheduler, count in [(None, 0), ("default-scheduler", 0), ("gpushare-scheduler", 1), ("volcano", 1)]:
        found = warnings(pod(asking(mem=1), schedulerName=scheduler), replace(RULES, scheduler=""))
        assert [text.endswith("remove it, or write default-scheduler") for text in found] == [True] * count


@pytest.mark.parametrize("asked", [{"mem": 3}, {"percent": 20}, {"mem": 3, "core": 10}, {"gpu": 1}])
def test_a_gpu_pod_with_a_preset_node_is_completed_and_its_author_told(asked: dict[str, int]) -> None:
    value = pod(asking("a", **asked), container("b"), nodeName="node-a", schedulerName="volcano")
    assert warnings(value, WHOLE) == (PRESET,)
    made = mutated(value, WHOLE)
    assert (made["spec"]["nodeName"], made["spec"]["runtimeClassName"]) == ("node-a", "nvidia")
    assert [each["env"][0] for each in made["spec"]["containers"]] == [visible("a"), VOID]
    assert mutation.mutate(made, WHOLE) is None


def test_a_preset_node_is_one_that_is_named_and_changes_no_grant() -> None:
    for name in ["", None]:
        assert warnings(pod(asking(mem=3), nodeName=name)) == ()
    both = limits({"aliyun.com/gpu-mem": "3", "nvidia.com/gpu": "1"}, env=[ALL])
    env = mutated(pod(both, nodeName="node-a"))["spec"]["containers"][0]["env"]
    assert [entry for entry in env if entry["name"] == ALL["name"]] == [visible("a")]


SOCKETS = [
    *("/", "/var", "/var/lib", "/var/lib/kubelet", "/var/lib/kubelet/", "/var/lib/../lib/kubelet", "//var/lib"),
    *("/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins/kubelet.sock"),
    *("/var/lib/kubelet/pod-resources", "/var/lib/kubelet/pod-resources/kubelet.sock"),
]
SPECS = ["/etc", "/etc/cdi", "/etc/cdi/x.yaml", "/var/run", "/var/run/cdi/", "/run", "/run/cdi"]


@pytest.mark.parametrize(
    ("path", "what"),
    [*((path, "the kubelet's sockets") for path in SOCKETS), *((path, "the node's CDI specs") for path in SPECS)],
)
def test_a_gpu_pod_with_what_controls_the_nodes_gpus_is_told(path: str, what: str) -> None:
    volumes = [{"name": "data", "emptyDir": {}}, {"name": "v", "hostPath": {"path": path}}]
    assert warnings(pod(asking("a", mem=1), volumes=volumes)) == (
        f"volume v (hostPath {path}) has {what}: a container that mounts it can reach all GPUs of its node, not only"
        " those granted to it",
    )
    assert warnings(pod(container("a"), volumes=volumes)) == ()


@pytest.mark.parametrize("path", ["/data", "/var/lib/kubelet/pods", "/var/lib/kubelet2", "/var/lib/kube", "/etc/cdi2"])
def test_other_paths_of_the_node_need_no_word(path: str) -> None:
    odd: list[Json] = [{}, {"hostPath": None}, {"hostPath": {}}]
    assert warnings(pod(asking("a", mem=1), volumes=[*odd, {"name": "v", "hostPath": {"path": path}}])) == ()
