"""`gpushare explain` and `gpushare simulate` as a user calls them: arguments, errors, exit codes."""

from pathlib import Path

import pytest

from gpushare.kube import api as kube
from gpushare_cli import __main__ as cli
from testing.builders import make_grant, make_inventory, make_node, make_pod
from testing.cli.calling import Run, reached
from testing.cli.explaining import kube_of
from testing.cli.podding import bound, mutated
from testing.cli.simulating import T4S
from testing.fakes.kube import FakeKube


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    """The cluster that the commands reach."""
    found = kube_of([make_node(make_inventory(15)), bound("web", make_grant(0)), mutated(make_pod(namespace="ml"))])
    reached(monkeypatch, found)
    return found


@pytest.mark.parametrize(
    ("argv", "first"),
    [
        (["web"], "POD:        default/web"),
        (["default/web"], "POD:        default/web"),
        (["pod", "-n", "ml"], "POD:        ml/pod"),
        (["ml/pod"], "POD:        ml/pod"),
        (["ml/pod", "--namespace", "ml"], "POD:        ml/pod"),
    ],
)
def test_a_pod_is_named_with_or_without_its_namespace(
    argv: list[str], first: str, cluster: FakeKube, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", *argv]) == 0
    assert capsys.readouterr().out.splitlines()[0] == first


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a/b/c"], "pod 'a/b/c': write NAME, NAMESPACE/NAME or KIND/NAME"),
        (["/b"], "pod '/b': write NAME, NAMESPACE/NAME or KIND/NAME"),
        (["a/"], "pod 'a/': write NAME, NAMESPACE/NAME or KIND/NAME"),
        (["a/b", "-n", "c"], "pod 'a/b': --namespace c says another namespace"),
    ],
)
def test_names_that_are_none_are_wrong_arguments(argv: list[str], message: str, cluster: FakeKube, run: Run) -> None:
    assert run("explain", *argv) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize("argv", [["explain"], ["explain", "a", "-o", "xml"], ["simulate", "--nodes", "x"]])
def test_unknown_words_are_wrong_arguments(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    assert capsys.readouterr().err.startswith("usage: ")


@pytest.mark.parametrize("command", ["explain", "simulate"])
def test_a_memory_unit_that_is_none_is_told_with_the_reason(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--memory-unit", "lots"]) == 2
    message = "error: memory unit 'lots': write GiB, MiB or a multiple such as 256MiB\n"
    assert capsys.readouterr() == ("", message)


def test_a_pod_that_is_not_there_is_told(cluster: FakeKube, run: Run) -> None:
    assert run("explain", "none", "-n", "ml") == (1, "", "error: there is no pod none in namespace ml\n")


def test_a_cluster_that_cannot_be_read_is_told(cluster: FakeKube, run: Run) -> None:
    cluster.fail_next(lambda call: call.path == "/api/v1/pods", kube.UnreachableError("refused"))
    assert run("explain", "web") == (1, "", "error: cannot reach the API server: refused\n")


def test_a_pod_that_may_not_be_read_is_told(cluster: FakeKube, run: Run) -> None:
    cluster.fail_next(lambda call: call.path.endswith("/pods/web"), kube.ForbiddenError("pods is forbidden"))
    assert run("explain", "web") == (1, "", "error: not allowed: pods is forbidden\n")


def test_simulate_needs_no_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "gpus.yaml"
    profile.write_text(T4S, encoding="utf-8")
    assert cli.main(["simulate", "--profile", str(profile), "--nodes", "2", "-o", "json"]) == 0
    assert '"name": "node-2"' in capsys.readouterr().out
