"""What a tenant writes into his objects is shown to an administrator, and does nothing to his terminal."""

import shlex
import subprocess
import sys

import orjson
import pytest

from gpushare_cli import __main__ as cli
from testing.builders import Json, make_container, make_inventory, make_node, make_pod
from testing.cli.calling import reached
from testing.cli.explaining import explain, kube_of

CLEAR = "\x1b[2J\x1b]0;owned\x07\x9b2J\u202e"
NODE = make_node(make_inventory(15, 15))


def waiting(scheduler: str) -> Json:
    """A pod on no node. Kubernetes takes any schedulerName."""
    pod = make_pod(make_container(gpu_mem=3))
    pod["spec"]["schedulerName"] = scheduler
    return pod


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's, with a pod that is made to harm a terminal."""
    kube = kube_of([NODE, waiting(CLEAR)])
    reached(monkeypatch, kube)


def test_no_control_character_of_an_object_reaches_a_terminal(
    cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["explain", "pod", "-n", "default"])
    told = capsys.readouterr()
    shown = "\\u001b[2J\\u001b]0;owned\\u0007\\u009b2J\\u202e"
    assert shown in told.out
    assert shown in told.err
    assert not set(CLEAR) - set("[2J]0;owned") & set(told.out + told.err)


def test_programs_read_the_same_text_as_was_written(cluster: None, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["explain", "pod", "-n", "default", "-o", "json"])
    out = capsys.readouterr().out
    assert orjson.loads(out)["scheduler"] == CLEAR
    assert "\u202e" not in out


def test_a_value_of_several_lines_forges_no_line_of_the_answer() -> None:
    found = explain(NODE, waiting("x\nLIMIT:   none\r\u2028"))
    assert "\nSCHEDULER:  x LIMIT: none\n" in found.out
    assert not [line for line in (found.out + found.err).splitlines() if line.startswith("LIMIT")]


@pytest.mark.parametrize(
    ("reads", "code", "said"),
    [
        ("exec 1>/dev/full", 1, "error: cannot write the answer: No space left on device\n"),
        ("exec 1> >(:); wait $!", 0, ""),
    ],
)
def test_an_answer_that_no_one_takes_is_no_traceback(reads: str, code: int, said: str) -> None:
    argv = [sys.executable, "-m", "gpushare_cli", "scheduler-config", "--server-version", "1.30"]
    shell = f"{reads}; exec {shlex.join(argv)}"
    done = subprocess.run(["bash", "-c", shell], stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (code, said)
