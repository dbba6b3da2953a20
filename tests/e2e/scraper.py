"""A real Prometheus that scrapes the test cluster, with the configuration that docs/monitoring.md gives."""

import base64
import contextlib
import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare import names
from localcluster import process, prometheus
from testing.fakes.kubelet import free_port
from tests.e2e.system import Json, System

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "monitoring.md"
RULES: Final = ROOT / "manifests" / "chart" / "files" / "rules.yaml"
LABEL: Final = "app.kubernetes.io/name"
TARGETS: Final = "targets.json"
CA_FILE: Final = "/etc/prometheus/gpushare-ca.crt"
_SCRAPE: Final = re.compile(r"```yaml\n(scrape_configs:\n.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API; an AssertionError if it is none."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                found: Json = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from error
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[Json]:
        """The series that an expression has now."""
        result: list[Json] = self.ask("query", query=expression)["result"]
        return result

    def targets(self) -> dict[str, str]:
        """What is scraped: pod -> why it does not answer; empty if it does."""
        found = self.ask("targets", state="active")["activeTargets"]
        return {
            each["labels"]["instance"]: each["lastError"] or ("" if each["health"] == "up" else each["health"])
            for each in found
        }


def configuration(directory: Path) -> Json:
    """As on the page, with targets from a file: Debian builds Prometheus without the discovery of Kubernetes."""
    [written] = _SCRAPE.findall(PAGE.read_text(encoding="utf-8"))
    assert CA_FILE in written
    found: Json = yaml.safe_load(written.replace(CA_FILE, str(directory / "ca.crt")))
    for each in found["scrape_configs"]:
        assert each.pop("kubernetes_sd_configs") == [{"role": "pod", "namespaces": {"names": [names.NAMESPACE]}}]
        each["file_sd_configs"] = [{"files": [str(directory / TARGETS)]}]
    interval = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    return {"global": interval, "rule_files": [str(directory / "rules.yaml")], **found}


def targets(system: System) -> list[Json]:
    """What Prometheus itself would discover: every port of every pod, with what relabelling needs of its labels."""
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {
                "__meta_kubernetes_pod_name": pod["metadata"]["name"],
                "__meta_kubernetes_pod_container_port_name": port["name"],
                "__meta_kubernetes_pod_label_app_kubernetes_io_name": pod["metadata"].get("labels", {}).get(LABEL, ""),
            },
        }
        for pod in system.pods(names.NAMESPACE)
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
        if pod["status"].get("podIP") and "deletionTimestamp" not in pod["metadata"]
    ]


@contextlib.contextmanager
def scraping(system: System, directory: Path) -> Iterator[Prometheus]:
    """Run it until the end of the block."""
    path = f"/api/v1/namespaces/{names.NAMESPACE}/secrets/{names.WEBHOOK_SECRET}"
    (directory / "ca.crt").write_bytes(base64.b64decode(system.api.get(path)["data"]["ca.crt"]))
    (directory / "rules.yaml").write_bytes(RULES.read_bytes())
    (directory / TARGETS).write_text(json.dumps(targets(system)))
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(configuration(directory)))
    address = f"127.0.0.1:{free_port()}"
    argv: list[str | Path] = [prometheus.programs() / "prometheus", f"--config.file={directory / 'prometheus.yaml'}"]
    argv += [f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}"]
    child = process.Process("prometheus", argv, directory / "prometheus.log")
    child.start()
    found = Prometheus(f"http://{address}")

    def ready() -> bool:
        child.check_alive()
        try:
            with urllib.request.urlopen(f"{found.url}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    try:
        system.eventually("Prometheus is ready", ready)
        yield found
    finally:
        child.stop()
