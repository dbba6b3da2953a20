"""`gpushare doctor` as a user calls it: output, messages, exit codes, and what it asks of a cluster."""

import threading

import orjson
import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare_cli.doctor import command, snapshot
from testing.cli import doctor_cluster as world
from testing.cli.calling import Run, reached
from testing.cli.doctor_cluster import NS, DoctorKube, forbidden, missing, skewed, together
from testing.cli.simulating import lines
from testing.fakes.faults import Delayed
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.findings import Told

COUNT = len(command.CHECKS)
NO_CLASS = missing("RuntimeClass", "nvidia")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> DoctorKube:
    """The cluster that the command reaches."""
    cluster = world.healthy()
    reached(monkeypatch, cluster)
    return cluster


def test_a_healthy_cluster_is_a_few_lines_and_exit_code_0(told: Told, api: DoctorKube, run: Run) -> None:
    assert run("doctor") == (0, lines(*told()), "")


def test_warnings_alone_are_no_failure(api: DoctorKube, run: Run) -> None:
    world.vanish(api, "RuntimeClass", "nvidia")
    code, out, _ = run("doctor")
    assert code == 0
    assert "\nwarning   runtime-class  runtimeclass/nvidia  it is missing: " in out
    assert "\nok  installation  6 of 7 checks passed\n" in out
    assert out.endswith(f"\n0 errors, 1 warning, {COUNT - 1} of {COUNT} checks passed\n")


def test_errors_come_first_and_are_exit_code_3(api: DoctorKube, run: Run) -> None:
    together(NO_CLASS, missing("Lease", names.LEASE), missing("Deployment", names.SCHEDULER))(api)
    code, out, _ = run("doctor")
    found = [line.split()[:2] for line in out.splitlines()[1:4]]
    errors = [["error", "controller-leads"], ["error", "scheduler-running"]]
    assert (code, found) == (3, [*errors, ["warning", "runtime-class"]])
    assert out.splitlines()[-1] == f"2 errors, 1 warning, {COUNT - 3} of {COUNT} checks passed"


def test_a_finding_is_one_line_whatever_its_message_has(api: DoctorKube, run: Run) -> None:
    api.says("gpushare-controller", "readyz", kube.Reply(status=503, text="one\n\ttwo\n"))
    assert f"service/{NS}/gpushare-controller  it is not ready: one two; ask again" in run("doctor")[1]


def test_what_is_wrong_with_hundreds_of_nodes_is_cut_for_people_only(api: DoctorKube, run: Run) -> None:
    for number in range(30):
        world.gpu_node(api, f"n{number:02}", with_plugin=False)
    found = [line for line in run("doctor")[1].splitlines() if line.startswith("error     plugin-running")]
    more = "error     plugin-running  ...       10 more like this; -o json has all"
    assert (len(found), found[-1]) == (21, more)
    assert len(orjson.loads(run("doctor", "-o", "json")[1])["findings"]) == 30


def test_json_has_everything_and_a_version(api: DoctorKube, run: Run) -> None:
    together(NO_CLASS, forbidden("/api/v1/nodes"))(api)
    code, out, _ = run("doctor", "-o", "json")
    value = orjson.loads(out)
    assert (code, value["version"], value["namespace"], value["server"]) == (3, 1, NS, "1.30")
    assert [(each["check"], each["severity"], each["object"]) for each in value["findings"]] == [
        ("cluster-read", "error", "nodes"),
        ("runtime-class", "warning", "runtimeclass/nvidia"),
    ]
    results = {each["id"]: (each["result"], each["skipped"]) for each in value["checks"]}
    assert results["runtime-class"] == ("warning", "")
    assert results["gpu-health"] == ("skipped", "cannot read nodes: no")
    assert results["installed"] == ("ok", "")
    assert {each["meaning"][-1] for each in value["checks"]} == {"."}


def test_skipped_checks_are_counted(api: DoctorKube, run: Run) -> None:
    summary = f"1 error, 0 warnings, 0 of {COUNT} checks passed, {COUNT - 1} not done"
    assert run("doctor", "-n", "elsewhere")[1].splitlines()[-1] == summary


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (kube.Reply(status=502, text="bad\ngateway"), "the API server answered: bad gateway"),
        (
            kube.Reply(status=200, text="<html>welcome</html>"),
            "the API server answered: /version: no answer of an API server: <html>welcome</html>",
        ),
        (kube.Reply(status=200, text="[]"), "the API server answered: /version: no answer of an API server: []"),
        (world.server("2.0"), "server version '2.0': only Kubernetes 1.x is known"),
    ],
)
def test_a_cluster_that_cannot_be_read_is_one_line_and_exit_code_1(
    version: kube.Reply | kube.KubeError, message: str, api: DoctorKube, run: Run
) -> None:
    api.replies["/version"] = version
    assert run("doctor") == (1, "", f"error: {message}\n")


@pytest.mark.parametrize("namespace", ["", "A", "a/b", "a.b", "-a", "a-", "a" * 64])
def test_an_impossible_namespace_is_exit_code_2(namespace: str, api: DoctorKube, run: Run) -> None:
    message = f"namespace {namespace!r}: write lower-case letters, digits and '-', such as gpushare-system"
    assert run("doctor", f"--namespace={namespace}") == (2, "", f"error: {message}\n")


AGAIN = "ask again; if it stays, check the API server"
INSIDE = f"/api/v1/namespaces/{NS}"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
APPS = "/apis/apps/v1"
PATHS = (
    "/api/v1/nodes",
    "/api/v1/pods",
    f"{INSIDE}/configmaps/gpushare-config",
    f"{INSIDE}/configmaps/gpushare-scheduler",
    "/apis/node.k8s.io/v1/runtimeclasses",
    "/api/v1/namespaces",
    f"{APPS}/daemonsets",
    f"{ADMISSION}/mutatingwebhookconfigurations/gpushare-webhook",
    f"{ADMISSION}/validatingadmissionpolicies/gpushare-isolation",
    f"{INSIDE}/endpoints/gpushare-webhook",
    f"/apis/coordination.k8s.io/v1/namespaces/{NS}/leases/gpushare-controller",
    f"{APPS}/namespaces/{NS}/deployments/gpushare-scheduler",
)


def test_a_read_that_fails_is_one_line_with_the_checks_that_miss_it() -> None:
    findings.compare("cluster-read", [forbidden(path) for path in PATHS])


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
    assert len(found.results) == len(command.CHECKS)
    assert {result.check.id for result in found.results if result.passed} == {"server-version", "webhook-admission"}


def test_what_a_check_has_found_is_not_lost_when_it_comes_to_what_cannot_be_read() -> None:
    api = world.healthy()
    world.vanish(api, "DaemonSet", world.PLUGIN)
    api.fail_next(lambda call: call.path == "/api/v1/nodes", kube.ForbiddenError("no"))
    found = world.diagnosis(api)
    [daemonset] = [result for result in found.results if result.check.id == "plugin-daemonset"]
    assert [each.problem for each in daemonset.findings] == ["it is missing, so no node shares a GPU"]
    assert daemonset.skipped == "cannot read nodes: no"


def test_nothing_is_written_and_the_endpoints_are_asked_through_the_proxy(told: Told) -> None:
    api = world.healthy()
    world.lines(api)
    assert {call.verb for call in api.calls} == {"get", "list"}  # and one dry run, which the fake checks
    assert sorted(api.asked) == told()


def test_whichever_waits_is_told_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_QUIET_S", 0.05)
    api, said, answered = world.healthy(), list[str](), threading.Event()
    api.fail_next(lambda call: call.path == "/api/v1/nodes", Delayed(answered))

    def say(text: str) -> None:
        said.append(text)
        if text == "still reading nodes":
            answered.set()

    found = command.diagnose(snapshot.take(api, skewed(), NS, say))
    assert said[-1] == "still reading nodes"
    assert found.findings == ()


def test_an_odd_object_ends_only_the_checks_that_look_at_it(told: Told) -> None:
    api = world.healthy()
    world.edit(api, "Lease", "gpushare-controller", lambda lease: lease.update(spec=7))
    assert world.lines(api) == told()


def test_a_pod_that_is_none_is_kept_for_the_check_that_says_so() -> None:
    api = world.healthy()
    api.seed("/api/v1/namespaces/default/pods", {"metadata": {"name": "odd"}, "spec": {"containers": "none"}})
    assert "spec.containers: expected a list, found a string" in "\n".join(world.lines(api))
