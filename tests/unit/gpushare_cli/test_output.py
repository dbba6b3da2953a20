import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import orjson
import pytest
import yaml

from gpushare.errors import WireError
from gpushare.kube import api as kube
from gpushare_cli import __main__ as cli
from gpushare_cli import inspect_command, yamls
from gpushare_cli.__main__ import command_line
from gpushare_cli.console import Streams
from testing.builders import Json, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.calling import reached
from testing.cli.doctor_cluster import DoctorKube, healthy
from testing.cli.draining import owned
from testing.cli.explaining import explain, kube_of
from testing.cli.podding import bound, mutated
from testing.cli.simulating import listed, manifest, simulate
from tests.unit.gpushare_cli.clusters import api_of
from tests.unit.gpushare_cli.findings import golden

MANIFEST = """apiVersion: v1
kind: Pod
metadata: {name: large}
spec: {containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 15}}}]}
"""
PROFILE = "gpus: [{model: Tesla T4, memoryMiB: 15360, count: 2}]"
COMMANDS = {
    "inspect": ["--limits"],
    "explain": ["web"],
    "simulate": ["-f", "pod.yaml", "--profile", "profile.yaml"],
    "doctor": [],
    "drain": ["node-a/0", "--dry-run"],
    "defrag": ["-f", "pod.yaml"],
}


def test_every_command_with_json_is_here() -> None:
    (commands,) = (action.choices for action in command_line()._actions if isinstance(action.choices, dict))
    with_json = {name for name, parser in commands.items() if "json" in parser.format_usage()}
    assert with_json == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_yaml_says_what_json_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kube = DoctorKube()
    kube.seed("/api/v1/nodes", make_node(make_inventory(15, 15)))
    for pod in owned(bound("web", make_grant(0))), mutated(make_pod(make_container(gpu_mem=20), name="waits")):
        kube.seed("/api/v1/namespaces/default/pods", pod)
    reached(monkeypatch, kube)
    (tmp_path / "pod.yaml").write_text(MANIFEST)
    (tmp_path / "profile.yaml").write_text(PROFILE)
    monkeypatch.chdir(tmp_path)
    codes = cli.main([name, *COMMANDS[name], "-o", "json"]), cli.main([name, *COMMANDS[name], "-o", "yaml"])
    out = capsys.readouterr().out
    as_json, decoder = out.lstrip(), json.JSONDecoder()
    value, end = decoder.raw_decode(as_json)
    assert codes[0] == codes[1]
    assert value
    assert yaml.safe_load(as_json[end:]) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a: 1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("---\n---\n", [None, None]),
        ('{"a": [1]}', [{"a": [1]}]),
        ("{a: 1}\n---\n{b: 2}", [{"a": 1}, {"b": 2}]),
        ("time: 2024-01-01T00:00:00Z", [{"time": "2024-01-01T00:00:00Z"}]),
        ("a: &x [1]\nb: *x", [{"a": [1], "b": [1]}]),
        ("[" * 100 + "]" * 100, [json.loads("[" * 100 + "]" * 100)]),
    ],
)
def test_documents_are_read(text: str, expected: list[object]) -> None:
    assert yamls.load_all(text, "f.yaml") == expected


def test_no_text_goes_on_in_a_next_line() -> None:
    assert yamls.dump({"a": "b " * 99 + "b"}).count("\n") == 1


@pytest.mark.parametrize("case", golden("output", "no yaml"))
def test_what_is_no_yaml_is_told_with_its_place(case: str) -> None:
    text, _, message = case.partition(" => ")
    with pytest.raises(WireError) as caught:
        yamls.load_all(json.loads(text), "f.yaml")
    assert str(caught.value) == f"f.yaml: {message}"


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, '{"a":' * 101 + "1" + "}" * 101, "a: &x [*x]"])
def test_what_is_too_deep_or_too_long_a_number_is_an_error(text: str) -> None:
    with pytest.raises(WireError, match=r"^f\.yaml: not YAML: a number that cannot be read$"):
        yamls.load_all("9" * 5000, "f.yaml")
    with pytest.raises(WireError, match=r"^f\.yaml: nested more than 100 levels deep$"):
        yamls.load_all(text, "f.yaml")


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


FORGED = "x\nwarning: all GPUs are lost\r\u2028warning: delete your pods"


def beginnings(text: str) -> set[str]:
    """The words with which its lines begin."""
    return {line.partition(" ")[0] for line in text.splitlines()}


def test_inspect_quotes_an_annotation_on_one_line() -> None:
    grant = make_grant(0, gib=3)
    lost = bound("lost", type(grant)(container=grant.container, kind=grant.kind, gpus=(FORGED,), memory_mib=1024))  # type: ignore[arg-type]
    streams = Streams(out=io.StringIO(), err=io.StringIO())
    inspect_command.run(api_of([NODE], [lost]), streams, inspect_command.Options())
    told = streams.err.getvalue()  # type: ignore[attr-defined] # a StringIO
    assert "holds memory on GPU x warning: all GPUs are lost" in told
    assert beginnings(told) == {"note:"}


def test_simulate_quotes_a_name_on_one_line() -> None:
    lost = bound("holder", make_grant(0, gib=3), namespace="ml", node=FORGED)
    odd = make_pod(make_container(resources={"limits": {"aliyun.com/gpu-memory": 3}}), name=FORGED)
    waits = make_pod(make_container(gpu_mem=99), name=f"b{FORGED}")
    found = simulate(listed(NODE, lost), manifest(odd), listed(waits))
    assert beginnings(found.err) == {"note:"}
    assert "not counted, on nodes that are not in the input: x warning: all GPUs are lost" in found.err
    assert "warning:" not in beginnings(found.out)
    pod = manifest(make_pod(name=FORGED))  # that is there twice
    found = simulate(pod, pod)
    assert found.code == 1
    assert beginnings(found.err) == {"error:"}


@pytest.mark.parametrize("argv", [["inspect"], ["explain", "pod"], ["doctor"]])
def test_what_an_api_server_answers_is_one_line(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(_path: str, _context: str) -> NoReturn:
        raise kube.ServerFaultError(FORGED)

    monkeypatch.setattr("gpushare.kube.client.connect", connect)
    monkeypatch.setattr("gpushare.kube.credentials.namespace", lambda _path, _context: "default")
    monkeypatch.setenv("KUBECONFIG", "/somewhere")
    assert cli.main(argv) == 1
    assert beginnings(capsys.readouterr().err) == {"error:"}


def test_doctor_says_on_one_line_what_it_still_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpushare_cli.doctor import snapshot

    taken = snapshot.take

    def slow(*arguments: object) -> object:
        say = arguments[-1]
        assert callable(say)
        say(FORGED)
        return taken(*arguments)  # type: ignore[arg-type] # passed on as they came

    monkeypatch.setattr(snapshot, "take", slow)
    reached(monkeypatch, healthy())
    cli.main(["doctor"])
    said = "x warning: all GPUs are lost warning: delete your pods"
    assert capsys.readouterr().err == f"note: {said}\n"
