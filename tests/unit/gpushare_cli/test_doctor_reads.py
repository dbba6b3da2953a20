"""What is asked of a cluster, and what happens if it does not answer."""

import threading

import pytest

from gpushare.kube import api as kube
from gpushare_cli.doctor import checks, gather
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import NS, skewed
from testing.fakes.faults import Delayed

RIGHTS = "ask a user who may read it; docs/reference/doctor.md lists the rights"
AGAIN = "ask again; if it stays, check the API server"
OF_NODES = (
    "isolation, hand-over-summary, other-pods, plugin-daemonset, plugin-running, inventory, memory-unit, node-amounts,"
    " stale-inventory, gpu-health, gpu-cordon, hand-over, limits, limit-strength, oversubscription,"
    " nvidia-plugin,"
    " nvidia-sharing, sharing-plugins, dra-devices,"
    " pods-without-gpus, pods-unreadable, over-committed"
)
OF_PODS = (
    "isolation, controller-running, other-pods, plugin-daemonset, plugin-running, inventory, memory-unit,"
    " node-amounts, stale-inventory, gpu-health, gpu-cordon, hand-over, limits, limit-strength, oversubscription,"
    " nvidia-plugin,"
    " nvidia-sharing, sharing-plugins, other-schedulers, dra-devices, pods-pending, pods-without-gpus, pods-refused,"
    " pods-unreadable, pods-rejected, over-committed"
)
OF_SETTINGS = (
    "settings, runtime-class, webhook-policies, runtime-class-policy, scheduler-running, scheduler-leads,"
    " scheduler-config, scheduler-version, memory-unit, node-amounts, hand-over, limits, oversubscription, usage,"
    " nvidia-plugin, device-classes, pods-pending, pods-without-gpus, pods-refused, pods-unreadable, pods-rejected,"
    " over-committed"
)
INSIDE = f"/api/v1/namespaces/{NS}"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
ROWS = [
    ("/api/v1/nodes", "nodes", OF_NODES),
    ("/api/v1/pods", "pods", OF_PODS),
    (f"{INSIDE}/configmaps/gpushare-config", f"configmaps/{NS}/gpushare-config", OF_SETTINGS),
    (
        f"{INSIDE}/configmaps/gpushare-scheduler",
        f"configmaps/{NS}/gpushare-scheduler",
        "scheduler-config, other-schedulers",
    ),
    ("/apis/node.k8s.io/v1/runtimeclasses", "runtimeclasses", "runtime-class, runtime-class-policy, hand-over"),
    (
        "/api/v1/namespaces",
        "namespaces",
        "namespace-labels, isolation-exceptions, namespace-limits, limits, gpu-addons",
    ),
    ("/apis/apps/v1/daemonsets", "daemonsets", "gpu-addons"),
    (
        f"{ADMISSION}/mutatingwebhookconfigurations/gpushare-webhook",
        "mutatingwebhookconfigurations/gpushare-webhook",
        "webhook-configured, webhook-ca, webhook-policies, isolation",
    ),
    (
        f"{ADMISSION}/validatingadmissionpolicies/gpushare-isolation",
        "validatingadmissionpolicies/gpushare-isolation",
        "server-policies",
    ),
    (
        f"{INSIDE}/endpoints/gpushare-webhook",
        f"endpoints/{NS}/gpushare-webhook",
        "webhook-running, webhook-answers, webhook-certificate",
    ),
    (
        f"/apis/coordination.k8s.io/v1/namespaces/{NS}/leases/gpushare-controller",
        f"leases/{NS}/gpushare-controller",
        "controller-leads",
    ),
    (
        f"/apis/apps/v1/namespaces/{NS}/deployments/gpushare-scheduler",
        f"deployments/{NS}/gpushare-scheduler",
        "scheduler-running, scheduler-version",
    ),
]


@pytest.mark.parametrize(("path", "what", "unchecked"), ROWS, ids=[row[1] for row in ROWS])
def test_a_read_that_fails_is_one_line_with_the_checks_that_miss_it(path: str, what: str, unchecked: str) -> None:
    api = world.healthy()
    api.fail_next(lambda call: call.path == path, kube.ForbiddenError("no"), times=9)
    found = world.diagnosis(api)
    assert list(world.formatted(found)) == [
        f"error cluster-read {what} | cannot be read: no; not checked: {unchecked} | {RIGHTS}"
    ]
    assert ", ".join(result.check.id for result in found.results if result.skipped) == unchecked


@pytest.mark.parametrize(
    ("error", "way"),
    [
        (kube.UnauthorizedError("expired"), "log in again"),
        (kube.UnreachableError("timed out"), AGAIN),
        (kube.ServerFaultError("etcd"), AGAIN),
        (kube.TooManyRequestsError("slow down"), AGAIN),
    ],
)
def test_the_way_out_depends_on_what_went_wrong(error: kube.KubeError, way: str) -> None:
    api = world.healthy()
    api.fail_next(lambda call: call.path.endswith("runtimeclasses"), error)
    assert world.lines(api) == [
        f"error cluster-read runtimeclasses | cannot be read: {error};"
        f" not checked: runtime-class, runtime-class-policy, hand-over | {way}"
    ]


def test_a_cluster_of_which_nothing_can_be_read_ends_no_check_with_an_exception() -> None:
    api = world.healthy()
    api.fail_next(lambda _: True, kube.ForbiddenError("no"), times=10**6)
    found = world.diagnosis(api)
    assert len(found.results) == len(checks.CHECKS)
    assert {result.check.id for result in found.results if result.passed} == {"server-version", "webhook-admission"}


def test_what_a_check_has_found_is_not_lost_when_it_comes_to_what_cannot_be_read() -> None:
    api = world.healthy()
    world.vanish(api, "DaemonSet", world.PLUGIN)
    api.fail_next(lambda call: call.path == "/api/v1/nodes", kube.ForbiddenError("no"))
    found = world.diagnosis(api)
    [daemonset] = [result for result in found.results if result.check.id == "plugin-daemonset"]
    assert [each.problem for each in daemonset.findings] == ["it is missing, so no node shares a GPU"]
    assert daemonset.skipped == "cannot read nodes: no"


def test_a_list_that_expires_is_read_again_and_given_up_at_the_third_time() -> None:
    api = world.healthy()
    api.fail_next(lambda call: call.path == "/api/v1/pods", kube.GoneError("too old"), times=2)
    assert world.lines(api) == []
    api.fail_next(lambda call: call.path == "/api/v1/pods", kube.GoneError("too old"), times=3)
    assert [line.partition(";")[0] for line in world.lines(api)] == [
        "error cluster-read pods | cannot be read: too old"
    ]


def test_lists_come_in_pages() -> None:
    api = world.healthy()
    world.lines(api)
    lists = [call for call in api.calls if call.verb == "list"]
    assert {call.params["limit"] for call in lists} == {"500"}


def test_nothing_is_written_and_the_endpoints_are_asked_through_the_proxy() -> None:
    api = world.healthy()
    world.lines(api)
    assert {call.verb for call in api.calls} == {"get", "list"}  # and one dry run, which the fake checks
    assert sorted(api.asked) == [
        f"{INSIDE}/services/gpushare-controller:12345/proxy/metrics",
        f"{INSIDE}/services/gpushare-controller:12345/proxy/readyz",
        f"{INSIDE}/services/https:gpushare-webhook:443/proxy/metrics",
        f"{INSIDE}/services/https:gpushare-webhook:443/proxy/readyz",
        "/version",
    ]


def test_whichever_waits_is_told_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "_QUIET_S", 0.05)
    api, said, answered = world.healthy(), list[str](), threading.Event()
    api.fail_next(lambda call: call.path == "/api/v1/nodes", Delayed(answered))

    def say(text: str) -> None:
        said.append(text)
        if text == "still reading nodes":
            answered.set()

    found = checks.diagnose(gather.gather(api, gather.server(api, skewed()), NS, say))
    assert said[-1] == "still reading nodes"
    assert found.findings == ()


def test_an_odd_object_ends_only_the_checks_that_look_at_it() -> None:
    api = world.healthy()
    world.edit(api, "Lease", "gpushare-controller", lambda lease: lease.update(spec=7))
    assert world.lines(api) == [
        "error controller-leads cluster | an object has a shape that no one expects: lease.spec: expected an object,"
        " found a number | look at that object, and correct it"
    ]


def test_a_pod_that_is_none_is_kept_for_the_check_that_says_so() -> None:
    api = world.healthy()
    api.seed("/api/v1/namespaces/default/pods", {"metadata": {"name": "odd"}, "spec": {"containers": "none"}})
    assert "spec.containers: expected a list, found a string" in "\n".join(world.lines(api))
