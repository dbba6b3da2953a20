"""Tables fit 80 columns where they can, and nothing in them is cut."""

import io

import pytest

from gpushare.identity import ContainerName, GpuUuid, NodeName
from gpushare.model.allocation import Grant
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.units import GIB
from gpushare_cli import __main__ as cli
from gpushare_cli import console, inspect_command
from testing.builders import make_container, make_node, make_pod
from testing.cli import doctor_cluster as world
from testing.cli.calling import reached
from testing.cli.explaining import explain
from testing.cli.podding import bound, mutated
from testing.cli.simulating import lines, listed, manifest, simulate, workload
from tests.unit.gpushare_cli.findings import golden

LONG = "ip-10-204-118-207-gpu-a100-pool-b-7f9c4d8e.eu-central-1.example"
UUIDS = [f"GPU-{i}2345678-9abc-def0-1234-56789abcdef{i}" for i in range(8)]


def node(name: str, count: int = 8) -> NodeInventory:
    """A node as clouds name it, with GPUs as NVIDIA does."""
    gpus = tuple(
        Gpu(uuid=GpuUuid(UUIDS[i]), index=i, model="NVIDIA A100-SXM4-80GB", memory_mib=81920) for i in range(count)
    )
    return NodeInventory(node=NodeName(name), gpus=gpus, unit=GIB)


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


def test_explain_shows_why_a_pod_waits_and_where_it_is_in_80_columns() -> None:
    nodes = [make_node(node(LONG)), make_node(node("short"))]
    nodes[0]["spec"] = {"taints": [{"key": "nvidia.com/gpu-pool", "value": "research", "effect": "NoSchedule"}]}
    pod = mutated(make_pod(make_container(gpu_mem=90)))
    found = explain(*nodes, pod, width=80)
    assert too_long(found.out) == []
    assert words(found.out) == words(explain(*nodes, pod).out)
    assert found.lines == golden("output", "explain in 80 columns")
    inventory = node(LONG)
    grant = Grant(container=ContainerName("trainer"), gpus=(inventory.gpus[0].uuid,), memory_mib=40960)
    pods = [bound(name, grant, node=LONG) for name in ("pod", "language-model-fine-tuning-7d9f8b6c5d-x2x4z")]
    found = explain(make_node(inventory), *pods, width=80)
    assert too_long(found.out) == []
    assert words(found.out) == words(explain(make_node(inventory), *pods).out)
    assert any(UUIDS[0] in line for line in found.out.splitlines())


def test_simulate_fits_80_columns() -> None:
    cluster = listed(make_node(node(LONG)), make_node(node("node-b")))
    big = manifest(make_pod(make_container(gpu_mem=99), name="big"))
    objects = (cluster, workload("Deployment", "language-model-fine-tuning", replicas=2), big)
    found = simulate(*objects, width=80)
    assert too_long(found.out) == []
    assert words(found.out) == words(simulate(*objects).out)
    assert f"    {LONG}" in found.out


def test_doctor_fits_80_columns_and_its_commands_stay_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = world.healthy()
    world.vanish(cluster, "Lease", "gpushare-controller")
    world.gpu_node(cluster, LONG, with_plugin=False)
    reached(monkeypatch, cluster)
    cli.main(["doctor"])
    wide = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    cli.main(["doctor"])
    out = capsys.readouterr().out
    assert words(out) == words(wide)
    commands = [line.strip() for line in out.splitlines() if line.strip().startswith("kubectl")]
    assert too_long(out) == [line for line in too_long(out) if line.strip() in commands]
    selector = "app.kubernetes.io/name=gpushare-controller"
    assert f"kubectl -n gpushare-system logs -l {selector} --prefix --tail=100" in commands
    assert "kubectl -n gpushare-system describe daemonset gpushare-device-plugin" in commands


def test_what_is_no_terminal_is_not_folded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of the answer is a line for grep. COLUMNS folds it all the same."""
    cluster = world.healthy()
    world.vanish(cluster, "Lease", "gpushare-controller")
    reached(monkeypatch, cluster)
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("sys.__stdout__", io.StringIO())
    cli.main(["doctor"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error")]
    assert line.endswith("--tail=100")


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
