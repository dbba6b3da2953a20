"""`gpushare explain`, `simulate`, `doctor` and `report` on the real cluster: what they say is what is."""

import base64
import json
import tarfile
from pathlib import Path

from gpushare import names
from gpushare.model.request import Policy
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.system import FOUND, PROMPT_S, System, allocated, gpushare, gpushare_json, make_pod


def test_explain_says_what_the_scheduler_then_does(system: System, namespace: str) -> None:
    """A pod that fits nowhere is explained with the scheduler's own numbers; with room it is said to fit, and runs."""
    system.run(namespace, *[make_pod(f"full-{i}", GPU_GIB - 5) for i in range(2 * GPUS_PER_NODE)])
    system.create(namespace, make_pod("waits", 10))
    told = "needs 10 GiB on one GPU; free per GPU on node-1: 5, 5, 5, 5 GiB"
    system.wait_told(namespace, "waits", told)
    code, out, _ = gpushare(system, "explain", "waits", "-n", namespace)
    assert code == FOUND
    assert told in out

    system.delete(namespace, "full-0")
    [pod] = system.running(namespace, "waits", timeout_s=PROMPT_S)
    code, out, _ = gpushare(system, "explain", "waits", "-n", namespace)
    assert code == 0
    assert pod["spec"]["nodeName"] in out
    assert pod["metadata"]["annotations"]["devices.gpushare.dev/c0"] in out


def test_simulate_puts_pods_where_the_cluster_puts_them(system: System, namespace: str, tmp_path: Path) -> None:
    """From what `kubectl get nodes,pods -o yaml` prints, with a workload that then really comes.

    Node-2 is so full that binpack's score outweighs all that kube-scheduler thinks of nodes beside it.
    """
    all_gpus = {names.ANNOTATION_GPUS: str(GPUS_PER_NODE)}
    system.run(namespace, make_pod("full", GPU_GIB - 6, node="node-2", annotations=all_gpus))
    before = system.cluster.kubectl("get", "nodes,pods", "-A", "-o", "yaml").stdout
    (tmp_path / "cluster.yaml").write_text(before)
    binpack = {names.ANNOTATION_POLICY: Policy.BINPACK.value}
    workload = [
        make_pod("a", 6, annotations=binpack),
        make_pod("b", 5, annotations={names.ANNOTATION_GPUS: "3", **binpack}),
        make_pod("c", 100),
    ]
    for pod in workload:
        pod["metadata"]["namespace"] = namespace
    (tmp_path / "workload.yaml").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": workload}))
    files = ("-f", str(tmp_path / "cluster.yaml"), "-f", str(tmp_path / "workload.yaml"))
    code, out, err = gpushare(system, "simulate", *files)
    assert code == FOUND, err
    assert "needs 100 GiB on one GPU" in out
    rows = [row for row in gpushare_json(system, FOUND, "simulate", *files)["pods"] if row["namespace"] == namespace]
    planned = {
        row["name"]: (row["node"], {gpu["uuid"] for each in row["containers"] for gpu in each["gpus"]}) for row in rows
    }

    real = {
        pod["metadata"]["name"]: (pod["spec"]["nodeName"], set(allocated(pod)["c0"]))
        for document in workload[:2]
        for pod in system.run(namespace, document)
    }
    assert planned == {**real, "c": (None, set())}


def test_doctor_finds_nothing_wrong_and_then_what_was_broken(system: System) -> None:
    found = gpushare_json(system, 0, "doctor")["findings"]
    assert [finding for finding in found if finding["severity"] == "error"] == []

    kubectl, plugin = system.cluster.kubectl, ("daemonset/gpushare-device-plugin", "-n", names.NAMESPACE)
    system.label("node-2", "gpushare", None)
    try:
        gone = "app.kubernetes.io/name=gpushare-device-plugin"
        system.eventually("one plugin left", lambda: len(system.pods(names.NAMESPACE, gone)) == 1)
        kubectl("annotate", "node", "node-1", "gpushare.dev/cordoned-gpus=77")
        found = gpushare_json(system, 0, "doctor")["findings"]  # an administrator may do both; it is worth a warning
        told = [(each["object"], each["problem"]) for each in found if each["severity"] == "warning"]
        assert any(about == "node/node-2" and "inventory" in problem for about, problem in told), told
        assert any(about == "node/node-1" and "'77'" in problem for about, problem in told), told
    finally:
        kubectl("annotate", "node", "node-1", "gpushare.dev/cordoned-gpus-")
        system.label("node-2", "gpushare", "true")
        kubectl("rollout", "status", *plugin, timeout_s=120)


def test_doctor_finds_a_scheduler_that_would_not_let_the_controller_bind(system: System) -> None:
    """It reads the file, which the running scheduler does not do again."""
    path = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/gpushare-scheduler"
    written = system.api.get(path)["data"]["scheduler.yaml"]
    system.api.patch(path, {"data": {"scheduler.yaml": written.replace("bindVerb: bind", "bindVerb: bound")}})
    try:
        code, out, _ = gpushare(system, "doctor")
    finally:
        system.api.patch(path, {"data": {"scheduler.yaml": written}})
    assert code == FOUND, out
    assert "bindVerb of the extender is bound, not bind" in out


def test_the_report_helps_and_holds_no_secret(system: System, namespace: str, tmp_path: Path) -> None:
    canary, path = "hunter2-is-no-good-password", tmp_path / "report.tar.gz"
    system.run(namespace, make_pod("uses", env={"DATABASE_URL": f"postgres://me:{canary}@db"}))
    code, _, err = gpushare(system, "report", "-f", str(path))
    assert code == 0, err

    with tarfile.open(path) as archive:
        files = {each.name: archive.extractfile(each).read().decode() for each in archive}  # type: ignore[union-attr]
    text = "\n".join(files.values())
    assert path.stat().st_mode & 0o077 == 0
    assert f"{namespace}/uses" in text or "name: uses" in text
    logs = [name for name in files if name.startswith("gpushare-report/logs/")]
    for component in (names.WEBHOOK, names.CONTROLLER, names.PLUGIN):
        assert any(component in name for name in logs)
    assert "gpushare_" in files[f"gpushare-report/metrics/{names.CONTROLLER}.txt"]

    assert canary not in text
    for secret in json.loads(system.cluster.kubectl("get", "secrets", "-A", "-o", "json").stdout)["items"]:
        for key, value in (secret.get("data") or {}).items():
            plain = base64.b64decode(value)
            if key in {"tls.key", "ca.key", "token"} or b"PRIVATE KEY" in plain:
                assert plain.decode() not in text, key
                assert value not in text, key
