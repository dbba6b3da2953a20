"""Whether the installation is as it should be, and what is wrong with it as a whole, line by line."""

from pathlib import Path

import pytest

import controller.main
from gpushare.kube.api import JsonObject
from gpushare.units import ResourceConfig
from gpushare_cli.doctor import checks_admission, checks_control_plane, objects, snapshot
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import NS, Change, DoctorKube
from webhook import mutation
from webhook.metrics import Metrics
from webhook.mutation import Mutated
from webhook.rules import Rules

SETTINGS = f"configmap/{NS}/gpushare-config"
EDIT = f"kubectl -n {NS} edit configmap gpushare-config; then: kubectl -n {NS} rollout restart deployment,daemonset"


def setting(name: str, value: str) -> Change:
    def change(api: DoctorKube) -> None:
        world.edit(api, "ConfigMap", "gpushare-config", lambda config: config["data"].update({name: value}))

    return change


def unlabel(name: str) -> Change:
    def change(api: DoctorKube) -> None:
        world.edit(api, "Namespace", name, lambda namespace: namespace["metadata"].pop("labels"))

    return change


def namespace(name: str, **labels: str) -> Change:
    metadata = {"name": name, "labels": labels}
    return lambda api: world.seed(api, {"kind": "Namespace", "metadata": metadata})


def no_runtime_class(api: DoctorKube) -> None:
    world.vanish(api, "RuntimeClass", "nvidia")


def no_runtime_class_but_always(api: DoctorKube) -> None:
    no_runtime_class(api)
    setting("GPUSHARE_RUNTIME_CLASS_MODE", "always")(api)


HANDLER = (
    "run nvidia-ctk runtime configure --runtime=containerd (or crio) on the nodes, restart it, then create"
    " the RuntimeClass nvidia with the handler it made"
)
ROWS: list[tuple[Change, str]] = [
    (
        lambda api: world.vanish(api, "ConfigMap", "gpushare-config"),
        f"error settings {SETTINGS} | it is missing, and no component's container starts without it"
        " | apply the overlay for your server's version again: kubectl apply -k manifests/overlays/OVERLAY",
    ),
    (
        setting("GPUSHARE_MEMORY_UNIT", "GB"),
        f"error settings {SETTINGS} | GPUSHARE_MEMORY_UNIT='GB': memory unit 'GB': write GiB, MiB or a multiple such"
        f" as 256MiB | {EDIT}",
    ),
    (
        setting("GPUSHARE_WHOLE_GPUS", "maybe"),
        f"error settings {SETTINGS} | GPUSHARE_WHOLE_GPUS='maybe': write true or false | {EDIT}",
    ),
    (
        no_runtime_class,
        "warning runtime-class runtimeclass/nvidia | it is missing: containers see their GPUs only where NVIDIA's is"
        " the nodes' default runtime, and there every other pod runs under it too"
        f" | {HANDLER}",
    ),
    (
        no_runtime_class_but_always,
        "error runtime-class runtimeclass/nvidia | it is missing; the webhook sets it on every GPU pod, so all of"
        f" them are rejected | {HANDLER}",
    ),
    (
        unlabel("kube-system"),
        "warning namespace-labels namespace/kube-system | it lacks the label kubernetes.io/metadata.name=kube-system,"
        " so the webhook does not leave its pods alone | kubectl label namespace kube-system"
        " kubernetes.io/metadata.name=kube-system",
    ),
    (
        unlabel(NS),
        f"warning namespace-labels namespace/{NS} | it lacks the label kubernetes.io/metadata.name={NS}, so the"
        f" webhook does not leave its pods alone | kubectl label namespace {NS} kubernetes.io/metadata.name={NS}",
    ),
    (
        namespace("monitoring", **{"gpushare.dev/isolation": "disabled"}),
        "ok isolation-exceptions namespace/monitoring | the label gpushare.dev/isolation=disabled excludes it: its"
        " pods may see every GPU of their node | if that is not meant: kubectl label namespace monitoring"
        " gpushare.dev/isolation-",
    ),
    (
        namespace("gpu-operator", **{"kubernetes.io/metadata.name": "gpu-operator"}),
        "ok isolation-exceptions namespace/gpu-operator | its name excludes it, as one of GPU add-ons: its pods may see"
        " every GPU of their node | if tenants may create pods there: take the name out of the webhook configuration"
        " and the policies",
    ),
    *(
        (
            namespace("team-a", **{f"gpushare.dev/{key}": value}),
            f"warning namespace-limits namespace/team-a | the label gpushare.dev/{key}={value} has no effect; only"
            f" {known} | kubectl label namespace team-a --overwrite gpushare.dev/{key}={first}, or gpushare.dev/{key}-",
        )
        for key, value, known, first in (
            ("limit", "true", "enforced has one", "enforced"),
            ("gpu-policy", "Spread", "binpack or spread or dense or fgd has one", "binpack"),
            ("watchdog", "Evict", "report or evict or kill has one", "report"),
        )
    ),
    (
        namespace("team-a", **{"gpushare.dev/watchdog": "evict"}),
        "warning namespace-limits namespace/team-a | the label gpushare.dev/watchdog=evict has no effect: the device"
        " plugins do not read what containers use | add manifests/watchdog-evict to the overlay's components, or"
        " kubectl label namespace team-a gpushare.dev/watchdog-",
    ),
]


@pytest.mark.parametrize(("change", "line"), ROWS)
def test_each_has_its_line(change: Change, line: str) -> None:
    found = world.after(change)
    # The plugin itself needs every GPU, and says so where its namespace is not excluded by its label.
    assert [each for each in found if not each.startswith("warning gpu-addons")] == [line]


@pytest.mark.parametrize("mode", ["never", "if-exists"])
def test_a_runtime_class_is_not_missed_where_nothing_needs_it(mode: str) -> None:
    api = world.healthy()
    no_runtime_class(api)
    setting("GPUSHARE_RUNTIME_CLASS_MODE", mode)(api)
    source = {"name": "GPUSHARE_GPU_SOURCE", "value": "simulated:/etc/gpushare/profile.yaml"}
    if mode == "if-exists":

        def simulate(plugin: JsonObject) -> None:
            plugin["spec"]["template"]["spec"]["containers"][0]["env"].append(source)

        world.edit(api, "DaemonSet", world.PLUGIN, simulate)
    assert world.lines(api) == []


def test_without_an_installation_there_is_one_line_and_nothing_else_is_looked_at() -> None:
    api = DoctorKube()
    found = world.diagnosis(api, "elsewhere")
    assert list(world.formatted(found)) == [
        "error installed namespace/elsewhere | there is no such namespace, so gpushare is not installed or is in"
        " another one | install it as docs/install.md says, or say which namespace with -n"
    ]
    assert {result.skipped for result in found.results[1:]} == {"gpushare is not installed"}


def test_a_server_that_is_too_old_is_named() -> None:
    assert world.lines(world.healthy("production-1.20", "v1.19.3"))[0] == (
        "error server-version server | Kubernetes 1.19 is older than 1.20, the oldest that works | upgrade the cluster"
    )


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
    decision = mutation.mutate(snapshot.trial_pod(), Rules(resource_config=ResourceConfig()))
    assert isinstance(decision, Mutated)
    assert checks_admission.missing(decision.pod) == []
    assert decision.warnings == ()


def test_the_webhook_tells_the_time_left_under_the_expected_name() -> None:
    page = Metrics(lambda: 61.25, lambda: None).exposition().decode()
    assert objects.metric(page, checks_control_plane.CERTIFICATE_TTL) == 61.25


def test_the_controller_tells_the_differences_under_the_expected_name() -> None:
    source = Path(controller.main.__file__).read_text(encoding="utf-8")
    assert f'"{checks_control_plane.DIFFERENCES}"' in source
