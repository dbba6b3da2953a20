"""`gpushare doctor` as a user calls it: output, messages, exit codes."""

import orjson
import pytest

from gpushare.kube import api as kube
from gpushare_cli import __main__ as cli
from gpushare_cli.doctor import checks
from testing.cli import doctor_cluster as world
from testing.cli.calling import Run, reached
from testing.cli.doctor_cluster import NS, DoctorKube

COUNT = len(checks.CHECKS)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> DoctorKube:
    """The cluster that the command reaches."""
    cluster = world.healthy()
    reached(monkeypatch, cluster)
    return cluster


def test_a_healthy_cluster_is_a_few_lines_and_exit_code_0(api: DoctorKube, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr() == (
        "ok  installation  7 of 7 checks passed\n"
        "ok  webhook       10 of 10 checks passed\n"
        "ok  controller    5 of 5 checks passed\n"
        "ok  scheduler     5 of 5 checks passed\n"
        "ok  nodes         13 of 13 checks passed\n"
        "ok  conflicts     7 of 7 checks passed\n"
        "ok  pods          6 of 6 checks passed\n"
        "\n"
        f"0 errors, 0 warnings, {COUNT} of {COUNT} checks passed\n",
        "",
    )


def test_warnings_alone_are_no_failure(api: DoctorKube, capsys: pytest.CaptureFixture[str]) -> None:
    world.vanish(api, "RuntimeClass", "nvidia")
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "\nwarning   runtime-class  runtimeclass/nvidia  there is none: " in out
    assert "\nok  installation  6 of 7 checks passed\n" in out
    assert out.endswith(f"\n0 errors, 1 warning, {COUNT - 1} of {COUNT} checks passed\n")


def test_errors_come_first_and_are_exit_code_3(api: DoctorKube, capsys: pytest.CaptureFixture[str]) -> None:
    world.vanish(api, "RuntimeClass", "nvidia")
    world.vanish(api, "Lease", "gpushare-controller")
    world.vanish(api, "Deployment", "gpushare-scheduler")
    assert cli.main(["doctor"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["error", "controller-leads"],
        ["error", "scheduler-running"],
        ["warning", "runtime-class"],
    ]
    assert lines[-1] == f"2 errors, 1 warning, {COUNT - 3} of {COUNT} checks passed"


def test_a_finding_is_one_line_whatever_its_message_has(api: DoctorKube, capsys: pytest.CaptureFixture[str]) -> None:
    api.says("gpushare-controller", "readyz", kube.Reply(status=503, text="one\n\ttwo\n"))
    assert cli.main(["doctor"]) == 3
    assert f"service/{NS}/gpushare-controller  it is not ready: one two; ask again" in capsys.readouterr().out


def test_what_is_wrong_with_hundreds_of_nodes_is_cut_for_people_only(
    api: DoctorKube, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(30):
        world.gpu_node(api, f"n{number:02}", with_plugin=False)
    assert cli.main(["doctor"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("error     plugin-running")]) == 21
    assert "error     plugin-running  ...       10 more like this; -o json has all" in lines
    assert cli.main(["doctor", "-o", "json"]) == 3
    assert len(orjson.loads(capsys.readouterr().out)["findings"]) == 30


def test_json_has_everything_and_a_version(api: DoctorKube, capsys: pytest.CaptureFixture[str]) -> None:
    world.vanish(api, "RuntimeClass", "nvidia")
    api.fail_next(lambda call: call.path == "/api/v1/nodes", kube.ForbiddenError("no"))

    assert cli.main(["doctor", "-o", "json"]) == 3

    value = orjson.loads(capsys.readouterr().out)
    assert {key: value[key] for key in ("version", "namespace", "server")} == {
        "version": 1,
        "namespace": NS,
        "server": "1.30",
    }
    assert [(each["check"], each["severity"], each["object"]) for each in value["findings"]] == [
        ("cluster-read", "error", "nodes"),
        ("runtime-class", "warning", "runtimeclass/nvidia"),
    ]
    results = {each["id"]: (each["result"], each["skipped"]) for each in value["checks"]}
    assert results["runtime-class"] == ("warning", "")
    assert results["gpu-health"] == ("skipped", "cannot read nodes: no")
    assert results["installed"] == ("ok", "")
    assert {each["meaning"][-1] for each in value["checks"]} == {"."}


def test_skipped_checks_are_counted(api: DoctorKube, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "-n", "elsewhere"]) == 3
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"1 error, 0 warnings, 0 of {COUNT} checks passed, {COUNT - 1} not done"
    )


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (
            kube.UnauthorizedError("Unauthorized"),
            "the API server does not accept the credentials: Unauthorized; log in again",
        ),
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
def test_an_impossible_namespace_is_exit_code_2(
    namespace: str, api: DoctorKube, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", f"--namespace={namespace}"]) == 2
    message = f"error: namespace {namespace!r}: write lower-case letters, digits and '-', such as gpushare-system\n"
    assert capsys.readouterr() == ("", message)


@pytest.mark.parametrize("argv", [["doctor", "-o", "xml"], ["doctor", "extra"], ["doctor", "--node", "a"]])
def test_wrong_arguments_are_exit_code_2(argv: list[str], api: DoctorKube, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    assert capsys.readouterr().err.startswith("usage: gpushare")
