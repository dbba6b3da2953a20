"""`gpushare explain`, `doctor` and `report` on the real cluster: what they say is what is."""

import base64
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from controller.reconcile import placeholders
from gpushare import names
from localcluster import installation
from tests.e2e.conftest import GPU_GIB, GPUS_PER_NODE
from tests.e2e.system import FOUND, PROMPT_S, Json, System, gpushare, gpushare_json, make_pod

PLACEHOLDERS: Final = installation.ROOT / "manifests" / "placeholders" / "objects.yaml"


@pytest.fixture
def component(system: System) -> Iterator[None]:
    """What the component `placeholders` adds; its setting is in the installation's."""
    system.cluster.kubectl("apply", "-f", str(PLACEHOLDERS))
    yield
    system.cluster.kubectl("delete", "--wait=false", "-f", str(PLACEHOLDERS))


def unscheduled(pod: Json) -> bool:
    """Whether kube-scheduler has given up on it, which is what an autoscaler looks for."""
    found = {each["type"]: each for each in pod["status"].get("conditions", ())}
    return bool(found.get("PodScheduled", {}).get("reason") == "Unschedulable")


@pytest.mark.usefixtures("component")
def test_a_pod_that_waits_is_explained_and_a_node_is_asked_for_until_there_is_room(
    system: System, namespace: str
) -> None:
    """It fits the sums of nodes and no GPU: 5 GiB stay free on every one."""
    system.run(namespace, *[make_pod(f"big-{i}", GPU_GIB - 5) for i in range(2 * GPUS_PER_NODE)])
    system.create(namespace, make_pod("waits", 10))

    def asked() -> list[Json]:
        return [pod for pod in system.pods(names.PLACEHOLDERS) if unscheduled(pod)]

    [there] = system.eventually("a placeholder that kube-scheduler cannot place", asked)
    name = there["metadata"]["name"]
    assert name == f"for-{system.pod(namespace, 'waits')['metadata']['uid']}"
    assert there["spec"]["priority"] == -1
    read = placeholders.read(there)
    assert read is not None
    assert read.nodes == {node.name for node in system.cluster.nodes}
    numbers = "needs 10 GiB on one GPU; free per GPU on node-1: 5, 5, 5, 5 GiB"
    for_it = f"asked for by the pod {names.PLACEHOLDERS}/{name}"
    system.wait_told(namespace, "waits", numbers, "is enough in total", for_it)
    code, out, _ = gpushare(system, "explain", "waits", "-n", namespace)
    assert code == FOUND
    assert numbers in out

    system.delete(namespace, "big-0")
    [pod] = system.running(namespace, "waits", timeout_s=PROMPT_S)
    code, out, _ = gpushare(system, "explain", "waits", "-n", namespace)
    assert code == 0
    assert pod["spec"]["nodeName"] in out
    assert pod["metadata"]["annotations"]["devices.gpushare.dev/c0"] in out
    system.eventually("the placeholder is gone", lambda: not system.pods(names.PLACEHOLDERS))


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
