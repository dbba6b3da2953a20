"""Whether the doctor sees what keeps the device plugins from reading what containers use."""

from functools import partial

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Reply
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import NS, PLUGIN, DoctorKube
from testing.manifests import tree

GOOD = Reply(
    status=200, text='gpushare_plugin_usage_info{reading="on"} 1\ngpushare_plugin_gpu_foreign_bytes{UUID="G"} 0\n'
)
HIDDEN = Reply(status=200, text='gpushare_plugin_usage_info{reading="no-host-pid"} 1\n')
LOGS = (
    f"see the pods' logs: kubectl -n {NS} logs -l app.kubernetes.io/name={PLUGIN}; where network policies are enforced,"
    f" {PLUGIN} has to admit the API server to its port metrics"
)
HEAD = f"warning usage daemonset/{NS}/{PLUGIN} | "


def reading(component: str = "usage", **replies: Reply | kube.KubeError) -> DoctorKube:
    """A cluster after a component was applied. Args: replies: by the last letter of the node; all else is good."""
    api = world.healthy()
    [patch] = tree.documents(tree.MANIFESTS / component / "device-plugin.yaml")
    world.edit(api, "DaemonSet", PLUGIN, partial(apply, patch))
    for letter in "ab":
        name = f"{PLUGIN}-node-{letter}"
        world.edit(api, "Pod", name, with_port)
        api.replies[kube.pod_path(NS, f"{name}:12347", "proxy/metrics")] = replies.get(letter, GOOD)
    return api


def apply(patch: JsonObject, plugin: JsonObject) -> None:
    spec, more = plugin["spec"]["template"]["spec"], patch["spec"]["template"]["spec"]
    spec["hostPID"] = more["hostPID"]
    spec["containers"][0]["env"] = [*spec["containers"][0]["env"], *more["containers"][0]["env"]]


def with_port(pod: JsonObject) -> None:
    pod["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": 12347}]


@pytest.mark.parametrize("component", ["usage", "watchdog-evict", "watchdog-kill"])
def test_where_it_is_read_there_is_nothing_to_say(component: str) -> None:
    api = reading(component)
    labels = {names.WATCHDOG: "evict"}
    world.seed(api, {"kind": "Namespace", "metadata": {"name": "team-a", "labels": labels}})
    assert world.lines(api) == []


def test_where_it_is_not_wanted_no_plugin_is_asked() -> None:
    api = world.healthy()
    assert world.lines(api) == []
    assert not [path for path in api.asked if PLUGIN in path]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (HIDDEN, "its device plugin does not see the processes of the node: it needs hostPID (manifests/usage)"),
        (kube.ForbiddenError("no"), "its device plugin cannot be asked: no"),
        (Reply(status=200, text='gpushare_plugin_usage_info{reading="on"} 1\n'), "its driver lists no processes"),
    ],
)
def test_a_node_of_which_nothing_is_known_is_named(reply: Reply | kube.KubeError, problem: str) -> None:
    assert world.lines(reading(b=reply)) == [f"{HEAD}what is used on node node-b is not known: {problem} | {LOGS}"]


def test_a_plugin_without_the_processes_of_its_node_is_one_line() -> None:
    api = reading(a=HIDDEN, b=HIDDEN)
    world.edit(api, "DaemonSet", PLUGIN, lambda each: each["spec"]["template"]["spec"].pop("hostPID"))
    [line] = world.lines(api)
    assert line.startswith(
        f"{HEAD}its pods are to read what containers use (GPUSHARE_USAGE, GPUSHARE_WATCHDOG), and do"
    )


def test_the_setting_of_all_components_counts_too() -> None:
    api = world.healthy()
    world.edit(api, "ConfigMap", names.CONFIG, lambda each: each["data"].update(GPUSHARE_WATCHDOG="report"))
    assert [line.split(" | ")[0] for line in world.lines(api)] == [HEAD.removesuffix(" | ")]
