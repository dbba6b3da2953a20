"""`gpushare explain`, `simulate` and `doctor` on the real cluster: what they say is what is."""

import json
from pathlib import Path

import pytest

from gpushare import names
from gpushare.model.request import Policy
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.system import PROMPT_S, Json, Share, System, allocated, gpushare, is_ready

pytestmark = pytest.mark.e2e


def explained(system: System, namespace: str, pod: str) -> tuple[int, Json]:
    code, out, err = gpushare(system, "explain", pod, "-n", namespace, "-o", "json")
    assert code in {0, 3}, err
    value: Json = json.loads(out)
    return code, value


def test_explain_says_what_the_scheduler_then_does(system: System, namespace: str) -> None:
    """A pod that fits nowhere is explained with the scheduler's own numbers; with room it is said to fit, and runs."""
    fillers = [Share(name=f"full-{i}", gib=(GPU_GIB - 5,)).document() for i in range(2 * GPUS_PER_NODE)]
    system.create(namespace, *fillers)
    system.all_running(namespace, len(fillers))
    system.create(namespace, Share(name="waits", gib=(10,)).document())
    told = "needs 10 GiB on one GPU; free per GPU on node-1: 5, 5, 5, 5 GiB"
    system.eventually("an event with the numbers", lambda: told in "".join(system.events(namespace, "waits")))
    code, out, _ = gpushare(system, "explain", "waits", "-n", namespace)
    assert code == 3
    assert told in out

    system.cluster.kubectl("delete", "pod", "-n", namespace, "full-0", "--wait=false")
    system.eventually("it runs", lambda: is_ready(system.pod(namespace, "waits")), timeout_s=PROMPT_S)
    code, out, _ = gpushare(system, "explain", "waits", "-n", namespace)
    pod = system.pod(namespace, "waits")
    assert code == 0
    assert pod["spec"]["nodeName"] in out
    assert pod["metadata"]["annotations"]["devices.gpushare.dev/c0"] in out


def test_simulate_puts_pods_where_the_cluster_puts_them(system: System, namespace: str, tmp_path: Path) -> None:
    """From what `kubectl get nodes,pods -o yaml` prints, with a workload that then really comes.

    Node-2 is so full that binpack's score outweighs all that kube-scheduler thinks of nodes beside it.
    """
    full = Share(name="full", gib=(GPU_GIB - 6,), annotations={names.ANNOTATION_GPUS: str(GPUS_PER_NODE)}).document()
    full["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-2"}
    system.create(namespace, full)
    system.all_running(namespace, 1)
    before = system.cluster.kubectl("get", "nodes,pods", "-A", "-o", "yaml").stdout
    (tmp_path / "cluster.yaml").write_text(before)
    binpack = {names.ANNOTATION_POLICY: Policy.BINPACK.value}
    workload = [
        Share(name="a", gib=(6,), annotations=binpack).document(),
        Share(name="b", gib=(5,), annotations={names.ANNOTATION_GPUS: "3", **binpack}).document(),
        Share(name="c", gib=(100,)).document(),
    ]
    for pod in workload:
        pod["metadata"]["namespace"] = namespace
    (tmp_path / "workload.yaml").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": workload}))
    files = ("-f", str(tmp_path / "cluster.yaml"), "-f", str(tmp_path / "workload.yaml"))
    code, out, err = gpushare(system, "simulate", *files)
    assert code == 3, err
    assert "needs 100 GiB on one GPU" in out

    for i, pod in enumerate(workload[:2]):
        system.create(namespace, pod)
        system.all_running(namespace, i + 2)
    code, out, err = gpushare(system, "simulate", *files, "-o", "json")
    assert code == 3, err
    rows = [row for row in json.loads(out)["pods"] if row["namespace"] == namespace]
    planned = {
        row["name"]: (row["node"], {gpu["uuid"] for each in row["containers"] for gpu in each["gpus"]}) for row in rows
    }
    real = {
        name: (pod["spec"]["nodeName"], set(allocated(pod)["c0"]))
        for name in ("a", "b")
        for pod in [system.pod(namespace, name)]
    }
    assert planned == {**real, "c": (None, set())}


def test_doctor_finds_nothing_wrong_and_then_what_was_broken(system: System) -> None:
    code, out, err = gpushare(system, "doctor", "-o", "json")
    wrong = [finding for finding in json.loads(out)["findings"] if finding["severity"] == "error"]
    assert (code, wrong) == (0, []), err

    kubectl, plugin = system.cluster.kubectl, ("daemonset/gpushare-device-plugin", "-n", names.NAMESPACE)
    kubectl("label", "node", "node-2", "gpushare-")
    try:
        gone = "app.kubernetes.io/name=gpushare-device-plugin"
        system.eventually("one plugin left", lambda: len(system.pods(names.NAMESPACE, gone)) == 1)
        kubectl("annotate", "node", "node-1", "gpushare.dev/cordoned-gpus=77")
        code, out, _ = gpushare(system, "doctor", "-o", "json")
        assert code == 0, out  # an administrator may do both; it is worth a warning
        told = [
            (each["object"], each["problem"]) for each in json.loads(out)["findings"] if each["severity"] == "warning"
        ]
        assert any(about == "node/node-2" and "inventory" in problem for about, problem in told), out
        assert any(about == "node/node-1" and "'77'" in problem for about, problem in told), out
    finally:
        kubectl("annotate", "node", "node-1", "gpushare.dev/cordoned-gpus-")
        kubectl("label", "node", "node-2", "gpushare=true")
        kubectl("rollout", "status", *plugin, timeout_s=120)


def test_doctor_finds_a_scheduler_that_would_not_let_the_controller_bind(system: System) -> None:
    """It reads the file, which the running scheduler does not do again."""
    path = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/gpushare-scheduler"
    written = system.api.get(path)["data"]["scheduler.yaml"]

    def write(text: str) -> None:
        patch = json.dumps({"data": {"scheduler.yaml": text}})
        system.cluster.kubectl("patch", "configmap", "gpushare-scheduler", "-n", names.NAMESPACE, "-p", patch)

    write(written.replace("bindVerb: bind", "bindVerb: bound"))
    try:
        code, out, _ = gpushare(system, "doctor")
    finally:
        write(written)
    assert code == 3, out
    assert "bindVerb of the extender is bound, not bind" in out
