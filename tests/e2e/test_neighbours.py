"""Pods as queues, other schedulers, workflows, training and serving make them: what `docs/neighbours` promises."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare import names
from localcluster.cluster import BUSYBOX_IMAGE
from tests.e2e import checks, seen
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.injector import injecting
from tests.e2e.system import Json, Share, System, is_ready

pytestmark = pytest.mark.e2e
ALL: Json = {"env": [{"name": names.ENV_VISIBLE_DEVICES, "value": "all"}]}
END = ["sh", "-c", "/print-devices; env | sort"]


def container(name: str, gib: int | None = None, **fields: Any) -> Json:
    """One that prints what it sees; without `gib` one whose author would see all GPUs."""
    limits = {} if gib is None else {"resources": {"limits": {names.GPU_MEM: gib}}}
    return {"name": name, "image": BUSYBOX_IMAGE, **(ALL if gib is None else {}), **limits, **fields}


def pod(name: str, *containers: Json, init: tuple[Json, ...] = (), **metadata: Json) -> Json:
    spec: Json = {"containers": list(containers), "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    if init:
        spec["initContainers"] = list(init)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def workflow_step() -> Json:
    """Argo: `init` brings the executor, which then runs the author's command in `main`; `wait` saves its results.

    The label stands in the template's metadata.
    """
    mount: Json = {"volumeMounts": [{"name": "var-run-argo", "mountPath": "/var/run/argo"}]}
    executor = "/var/run/argo/argoexec"
    bring = f"""printf '#!/bin/sh\\nshift 2\\nexec "$@"\\n' > {executor}; chmod 755 {executor}; {END[2]}"""
    document = pod(
        "steps-train-1234567890",
        container("wait", **mount),
        container("main", 4, command=[executor, "emissary", "--", "/print-environment"], **mount),
        container("watcher", **mount),
        init=(container("init", command=["sh", "-c", bring], **mount),),
        labels={
            "workflows.argoproj.io/workflow": "steps",
            "workflows.argoproj.io/completed": "false",
            names.LABEL_GPU_COUNT: "2",
        },
        annotations={"kubectl.kubernetes.io/default-container": "main"},
    )
    document["spec"]["volumes"] = [{"name": "var-run-argo", "emptyDir": {}}]
    return document


def training(role: str) -> Json:
    """PyTorchJob: one pod for each replica; workers wait for the master's name in an init container."""
    wait = container("init-pytorch", command=END, resources={"limits": {"cpu": "100m", "memory": "20Mi"}})
    labels = {"training.kubeflow.org/job-name": "ddp", "training.kubeflow.org/replica-type": role}
    init = () if role == "master" else (wait,)
    return pod(f"ddp-{role}-0", container("pytorch", 3), init=init, labels=labels)


def predictor() -> Json:
    """KServe: an init container fetches the model; Knative's proxy stands beside the server."""
    return pod(
        "sklearn-predictor-00001",
        container("kserve-container", 2),
        container("queue-proxy"),
        init=(container("storage-initializer", command=END),),
        labels={"serving.kserve.io/inferenceservice": "sklearn"},
    )


def test_only_the_container_that_asked_gets_a_gpu(system: System, namespace: str) -> None:
    documents = [workflow_step(), training("master"), training("worker"), predictor()]
    system.create_complete(namespace, *documents)
    pods = system.running(namespace, *(each["metadata"]["name"] for each in documents))
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    assert {each["metadata"]["name"]: granted(each) for each in pods} == {
        "steps-train-1234567890": {"main": (2, "2048")},
        "ddp-master-0": {"pytorch": (1, "3072")},
        "ddp-worker-0": {"pytorch": (1, "3072")},
        "sklearn-predictor-00001": {"kserve-container": (1, "2048")},
    }
    printed = system.environments(namespace)
    inits = {
        (each["metadata"]["name"], c["name"]) for each in documents for c in each["spec"].get("initContainers", ())
    }
    assert len(inits) == 3
    assert {each: seen.by(printed[each]) for each in inits} == dict.fromkeys(inits, seen.NOTHING)


def granted(found: Json) -> dict[str, tuple[int, str]]:
    """Container -> number of GPUs, and MiB on each."""
    notes, prefix = found["metadata"]["annotations"], names.PREFIX_DEVICES
    return {
        key.removeprefix(prefix): (
            len(value.split(",")),
            notes[names.PREFIX_MEMORY + key.removeprefix(prefix)],
        )
        for key, value in notes.items()
        if key.startswith(prefix)
    }


@pytest.fixture
def suspended(system: System, namespace: str) -> Iterator[str]:
    """Path of a Job that is suspended; servers before 1.22 know no such Job, so theirs runs no pod."""
    alone = {"containers": [container("main", 3)], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    spec = {"suspend": True, "parallelism": 0, "completions": 2, "template": {"spec": alone}}
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    system.api.create(path, {"metadata": {"name": "queued"}, "spec": spec}, timeout_s=30)
    yield f"{path}/queued"
    system.api.delete(f"{path}/queued", {"propagationPolicy": "Background"}, timeout_s=30)


def test_the_pods_of_a_job_that_is_resumed_are_bound(system: System, namespace: str, suspended: str) -> None:
    assert system.pods(namespace) == []
    system.api.patch(suspended, {"spec": {"suspend": False, "parallelism": 2}}, timeout_s=30)
    pods = system.all_running(namespace, 2)
    assert {each["spec"]["schedulerName"] for each in pods} == {names.SCHEDULER}
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)


def test_a_gang_of_another_scheduler_gets_the_gpus_that_there_are(system: System, namespace: str) -> None:
    """Volcano and KAI count the sum of a node: five pods of 14 GiB fit there, and four of them on a GPU each."""
    gang = [Share(name=f"gang-{i}", gib=(GPU_GIB // 2 + 1,)).document() for i in range(GPUS_PER_NODE + 1)]
    for each in gang:
        each["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "gang"}
        each["spec"]["schedulerName"] = "volcano"
    system.create_complete(namespace, *gang)
    for each in system.pods(namespace):
        reference = {"name": each["metadata"]["name"], "uid": each["metadata"]["uid"]}
        target = {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": reference, "target": target}
        path = f"/api/v1/namespaces/{namespace}/pods/{reference['name']}/binding"
        system.api.create(path, binding, timeout_s=30)

    def ready() -> list[Json]:
        found = [each for each in system.pods(namespace) if is_ready(each)]
        return found if len(found) == GPUS_PER_NODE else []

    running = system.eventually("four run", ready)
    [rest] = [each for each in system.pods(namespace) if not is_ready(each)]
    words = re.compile(rf"GpuShareWaiting: it came to node-1 without GPUs .* needs {GPU_GIB // 2 + 1} GiB on one GPU")
    name = rest["metadata"]["name"]
    system.eventually("told why", lambda: words.search("\n".join(system.events(namespace, name))))
    checks.no_gpu_is_over_its_memory(system)
    checks.every_container_sees_exactly_its_gpus(system, namespace, running)


def test_containers_that_other_webhooks_add_see_what_they_asked_for(system: System, namespace: str) -> None:
    """One webhook is called before ours, and may ask for a GPU; one after it, whose author wants all GPUs."""
    specs: dict[str, Json] = {
        "agent-injector": {"containers": [container("agent", 1)]},
        "istio-sidecar-injector": {
            "initContainers": [container("istio-init", command=END)],
            "containers": [container("istio-proxy")],
        },
    }
    assert min(specs) < names.MUTATING_WEBHOOK < max(specs)
    path = f"/api/v1/namespaces/{namespace}/pods"

    def added(document: Json) -> bool:
        made = system.api.create(path, document, {"dryRun": "All"}, timeout_s=30)
        return {"agent", "istio-proxy"} <= {each["name"] for each in made["spec"]["containers"]}

    documents = [Share(name="meshed", gib=(3,)).document(), Share(name="plain", gib=(None,)).document()]
    with injecting(system, namespace, specs):
        system.eventually("both are called", lambda: added(documents[0]))
        system.create_complete(namespace, *documents)
    pods = system.running(namespace, "meshed", "plain")
    assert [len(each["spec"]["containers"]) for each in pods] == [3, 3]
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    printed = system.environments(namespace)
    assert seen.by(printed["meshed", "istio-init"]) == seen.NOTHING
    assert [granted(each).keys() for each in pods] == [{"agent", "c0"}, {"agent"}]
