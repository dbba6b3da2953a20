"""What commands write: the same as JSON and YAML, nothing that a terminal obeys, and tables that fit it uncut."""

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import yaml

from gpushare.errors import WireError
from gpushare.identity import GpuUuid, NodeName
from gpushare.kube import api as kube
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.units import GIB
from gpushare_cli import console, inspect_command, yamls
from gpushare_cli.__main__ import command_line
from gpushare_cli.console import Streams
from testing.builders import Json, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli import doctor_cluster as world
from testing.cli.calling import Run, reached
from testing.cli.doctor_cluster import DoctorKube
from testing.cli.draining import owned
from testing.cli.explaining import explain, kube_of
from testing.cli.podding import bound, mutated
from testing.cli.simulating import lines, listed, manifest, simulate, workload
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
def test_yaml_says_what_json_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    kube = DoctorKube()
    kube.seed("/api/v1/nodes", make_node(make_inventory(15, 15)))
    for pod in owned(bound("web", make_grant(0))), mutated(make_pod(make_container(gpu_mem=20), name="waits")):
        kube.seed("/api/v1/namespaces/default/pods", pod)
    reached(monkeypatch, kube)
    (tmp_path / "pod.yaml").write_text(MANIFEST)
    (tmp_path / "profile.yaml").write_text(PROFILE)
    monkeypatch.chdir(tmp_path)
    code, as_json, _ = run(name, *COMMANDS[name], "-o", "json")
    value = json.loads(as_json)
    assert value
    assert run(name, *COMMANDS[name], "-o", "yaml")[0] == code
    assert yaml.safe_load(run(name, *COMMANDS[name], "-o", "yaml")[1]) == value


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


def test_no_control_character_of_an_object_reaches_a_terminal(cluster: None, run: Run) -> None:
    _, out, err = run("explain", "pod", "-n", "default")
    shown = "\\u001b[2J\\u001b]0;owned\\u0007\\u009b2J\\u202e"
    assert (shown in out, shown in err) == (True, True)
    assert not set(CLEAR) - set("[2J]0;owned") & set(out + err)


def test_programs_read_the_same_text_as_was_written(cluster: None, run: Run) -> None:
    _, out, _ = run("explain", "pod", "-n", "default", "-o", "json")
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


@pytest.mark.parametrize("argv", [["inspect"], ["explain", "pod"], ["doctor"]])
def test_what_an_api_server_answers_is_one_line(argv: list[str], monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    api = DoctorKube()
    api.replies["/version"] = kube.ServerFaultError(FORGED)
    api.fail_next(lambda _: True, kube.ServerFaultError(FORGED), times=99)
    reached(monkeypatch, api)
    code, _, err = run(*argv)
    assert (code, beginnings(err)) == (1, {"error:"})


LONG = "ip-10-204-118-207-gpu-a100-pool-b-7f9c4d8e.eu-central-1.example"
UUIDS = [f"GPU-{i}2345678-9abc-def0-1234-56789abcdef{i}" for i in range(8)]


def cloud_node(name: str) -> Json:
    """A node as clouds name it, with GPUs as NVIDIA does."""
    gpus = tuple(
        Gpu(uuid=GpuUuid(uuid), index=i, model="NVIDIA A100-SXM4-80GB", memory_mib=81920)
        for i, uuid in enumerate(UUIDS)
    )
    return make_node(NodeInventory(node=NodeName(name), gpus=gpus, unit=GIB))


def too_long(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > 80]


def words(text: str) -> str:
    """Without the ends of lines and the indentation."""
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("rows", "width", "expected"),
    [
        (
            [("NODE", "FITS", "WHY"), ("node-a", "yes", "score 7 of 10"), ("b", "no", "")],
            80,
            ["NODE    FITS  WHY", "node-a  yes   score 7 of 10", "b       no"],
        ),
        (
            [("NODE", "WHY"), ("node-a", "it has three words and then some more of them, which is too long")],
            50,
            ["NODE    WHY", "node-a  it has three words and then some more of", "        them, which is too long"],
        ),
        (
            [("NODE", "FITS", "WHY"), (LONG, "no", "needs 20 GiB on one GPU"), ("b", "yes", "short")],
            80,
            [f"{'NODE':63}  FITS  WHY", f"{LONG}  no", "    needs 20 GiB on one GPU", f"{'b':63}  yes   short"],
        ),
        (
            [("UUID", "NODE", "GPU", "MEMORY"), (UUIDS[0], LONG, "0", "3 GiB"), ("?", "b", "?", "")],
            80,
            ["UUID", f"    {'NODE':63}  GPU  MEMORY", UUIDS[0], f"    {LONG}  0    3 GiB", "?", f"    {'b':63}  ?"],
        ),
        ([("A", "B"), ("x" * 99, "of " + "x" * 99)], 80, ["A", "    B", "x" * 99, "    of", f"    {'x' * 99}"]),
        ([("a\tb", "c\nd\te")], 80, ["a b  c d e"]),
    ],
    ids=["columns", "folded prose", "prose below", "columns below", "a long word", "lines and tabs of a cell"],
)
def test_a_table_fits_and_nothing_is_cut(rows: list[tuple[str, ...]], width: int, expected: list[str]) -> None:
    assert console.table(rows, width) == lines(*expected)


@pytest.mark.parametrize(
    ("prose", "command"),
    [
        (
            f"no plugin is there; kubectl -n gpushare-system describe node {LONG}; then ask again",
            f"describe node {LONG}",
        ),
        (f"either kubectl annotate node {LONG} --overwrite a/b=NUMBER,UUID, or not", "a/b=NUMBER,UUID"),
        (f"kubectl label node {LONG} gpu- (the label that it selects by)", "gpu-"),
        ("what this prints: gpushare scheduler-config --server-version 1.30 --whole-gpus --lease-name x-y-z", "x-y-z"),
    ],
)
def test_a_command_stays_on_one_line(prose: str, command: str) -> None:
    found = console.folded(prose, 60)
    (line,) = [line for line in found if line.startswith(("kubectl", "gpushare"))]
    assert line.rstrip(";,").endswith(command)
    assert " ".join(found) == prose


def test_explain_shows_why_a_pod_waits_in_80_columns() -> None:
    nodes = [cloud_node(LONG), cloud_node("short")]
    nodes[0]["spec"] = {"taints": [{"key": "nvidia.com/gpu-pool", "value": "research", "effect": "NoSchedule"}]}
    pod = mutated(make_pod(make_container(gpu_mem=90)))
    found = explain(*nodes, pod, width=80)
    assert too_long(found.out) == []
    assert words(found.out) == words(explain(*nodes, pod).out)
    assert found.lines == golden("output", "explain in 80 columns")


def test_simulate_fits_80_columns() -> None:
    cluster = listed(cloud_node(LONG), cloud_node("node-b"))
    big = manifest(make_pod(make_container(gpu_mem=99), name="big"))
    objects = (cluster, workload("Deployment", "language-model-fine-tuning", replicas=2), big)
    found = simulate(*objects, width=80)
    assert too_long(found.out) == []
    assert words(found.out) == words(simulate(*objects).out)
    assert f"    {LONG}" in found.out


def test_doctor_fits_80_columns_and_is_not_folded_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """A line of the answer is a line for grep. COLUMNS folds it all the same."""
    cluster = world.healthy()
    world.vanish(cluster, "Lease", "gpushare-controller")
    world.gpu_node(cluster, LONG, with_plugin=False)
    reached(monkeypatch, cluster)
    monkeypatch.setattr("sys.__stdout__", io.StringIO())
    monkeypatch.delenv("COLUMNS")
    _, wide, _ = run("doctor")
    assert [line.endswith("--tail=100") for line in wide.splitlines() if " controller-leads " in line] == [True]
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run("doctor")
    assert words(out) == words(wide)
    assert [line for line in too_long(out) if not line.strip().startswith("kubectl")] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain\n", "plain\n"),
        ("a\tb\nlong\tc\n", "a     b\nlong  c\n"),
        ("a\tb", "a  b"),
        ("a\t\n", "a  \n"),  # a cell that ends with a tab is padded, also at the line's end
        ("a\tlonger than all\nb\tc\n", "a  longer than all\nb  c\n"),  # the last cell belongs to no column
        ("a\tb\nno tab\nlonger\tc\n", "a  b\nno tab\nlonger  c\n"),  # a line without tabs ends the block
        ("\tb\n\tc\n", "  b\n  c\n"),  # an empty column is as wide as the padding
        ("a\tb\tc\nd\te\nf\tgg\th\n", "a  b  c\nd  e\nf  gg  h\n"),  # each block has widths of its own
        ("名\tb\nxx\tc\n", "名   b\nxx  c\n"),  # counted in characters
    ],
)
def test_cells_of_neighbouring_lines_form_columns(text: str, expected: str) -> None:
    assert inspect_command.layout(text) == expected
