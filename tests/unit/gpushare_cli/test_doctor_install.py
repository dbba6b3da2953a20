"""Whether the installation is as it should be, and what is wrong with it as a whole, line by line."""

from pathlib import Path

import pytest

import controller.main
from gpushare_cli.doctor import checks_admission, checks_control_plane, objects, snapshot
from testing import reviews
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import NS, Change, DoctorKube, missing, put, seeded, setting, together
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.findings import Told
from webhook.metrics import Metrics


def namespace(name: str, **labels: str) -> Change:
    return seeded({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})


def unlabel(name: str) -> Change:
    return put("Namespace", name, "metadata", "labels")


NO_CLASS = missing("RuntimeClass", "nvidia")
CHANGES: dict[str, list[Change]] = {
    "settings": [missing("ConfigMap", "gpushare-config"), setting(MEMORY_UNIT="GB"), setting(WHOLE_GPUS="maybe")],
    "runtime-class": [NO_CLASS, together(NO_CLASS, setting(RUNTIME_CLASS_MODE="always"))],
    "namespace-labels": [unlabel("kube-system"), unlabel(NS)],
    "isolation-exceptions": [
        namespace("monitoring", **{"gpushare.dev/isolation": "disabled"}),
        namespace("gpu-operator", **{"kubernetes.io/metadata.name": "gpu-operator"}),
    ],
    "namespace-limits": [
        *(
            namespace("team-a", **{f"gpushare.dev/{key}": value})
            for key, value in (
                ("limit", "true"),
                ("gpu-policy", "Spread"),
                ("watchdog", "Evict"),
                ("watchdog", "evict"),
            )
        )
    ],
}


@pytest.mark.parametrize(("check", "changes"), CHANGES.items())
def test_each_change_has_its_line(check: str, changes: list[Change]) -> None:
    findings.compare(check, changes)


@pytest.mark.parametrize("mode", ["never", "if-exists"])
def test_a_runtime_class_is_not_missed_where_nothing_needs_it(mode: str) -> None:
    api = world.healthy()
    together(NO_CLASS, setting(RUNTIME_CLASS_MODE=mode))(api)
    env = [{"name": "GPUSHARE_GPU_SOURCE", "value": "simulated:/etc/gpushare/profile.yaml"}]
    if mode == "if-exists":
        put("DaemonSet", world.PLUGIN, "spec", "template", "spec", "containers", 0, "env", value=env)(api)
    assert world.lines(api) == []


def test_without_an_installation_there_is_one_line_and_nothing_else_is_looked_at(told: Told) -> None:
    api = DoctorKube()
    found = world.diagnosis(api, "elsewhere")
    assert list(world.formatted(found)) == told()
    assert {result.skipped for result in found.results[1:]} == {"gpushare is not installed"}


def test_a_server_that_is_too_old_is_named(told: Told) -> None:
    assert world.lines(world.healthy("production-1.20", "v1.19.3"))[0] == told()[0]


@pytest.mark.parametrize(
    ("overlay", "version", "server"),
    [
        ("production", "v1.30.2", "1.30"),
        ("production", "v1.36.0+k3s1", "1.30"),
        ("production-1.25", "v1.27.3", "1.25"),
        ("production-1.23", "v1.24.17", "1.23"),
        ("production-1.20", "v1.20.15", "1.20"),
    ],
)
def test_an_installation_as_the_manifests_make_it_has_no_finding_with_whole_gpus_or_without(
    overlay: str, version: str, server: str
) -> None:
    assert world.lines(world.healthy(overlay, version)) == []
    assert world.lines(world.with_whole_gpus(overlay, version, server)) == []


def test_the_webhook_completes_the_trial_pod_and_that_is_noticed() -> None:
    decision = reviews.admitted(snapshot.trial_pod())
    assert checks_admission.missing(decision.pod) == []
    assert decision.warnings == ()


def test_the_webhook_tells_the_time_left_under_the_expected_name() -> None:
    page = Metrics(lambda: 61.25, lambda: None).exposition().decode()
    assert objects.metric(page, checks_control_plane.CERTIFICATE_TTL) == 61.25


def test_the_controller_tells_the_differences_under_the_expected_name() -> None:
    source = Path(controller.main.__file__).read_text(encoding="utf-8")
    assert f'"{checks_control_plane.DIFFERENCES}"' in source
