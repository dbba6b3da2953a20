import io
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
import shtab

from gpushare.kube import api as kube
from gpushare.model.gpu import GpuHealth, LeftOut
from gpushare_cli import __main__ as cli, arguments, inspect_command
from gpushare_cli.__main__ import COMMANDS, FIRST
from gpushare_cli.arguments import SHELLS, Command
from gpushare_cli.console import Streams
from gpushare_cli.inspect_command import PLUGIN
from testing.builders import make_inventory, make_node
from testing.cli.calling import Run, reached
from testing.fakes.kube import FakeKube
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.clusters import aliyun_node, aliyun_pod, api_of, node, our_node


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    """The cluster that the commands reach."""
    cluster = api_of(
        [aliyun_node(), node("cpu-only")],
        [aliyun_pod("binpack-1-0", gpu=0, mem=6), aliyun_pod("jupyter-1", gpu=1, mem=3)],
    )
    reached(monkeypatch, cluster)
    return cluster


def test_both_spellings_print_the_summary_and_details_may_stand_anywhere(api: FakeKube, run: Run) -> None:
    assert run(main=cli.inspect_main) == run("inspect") == (0, findings.file("summary.txt"), "")
    for argv in (["-d", "node-a"], ["node-a", "-d"], ["--details"]):
        code, out, _ = run(*argv, main=cli.inspect_main)
        assert (code, out[:20]) == (0, "\nNAME:       node-a\n")


def test_json_goes_to_standard_output_alone(api: FakeKube, run: Run) -> None:
    api.vanish("/api/v1/nodes/node-a")
    api.seed("/api/v1/nodes", our_node("node-a", 15360, unhealthy=[0]))
    code, out, err = run("-o", "json", main=cli.inspect_main)
    assert (code, orjson.loads(out)["usedMiB"], err.count("is unhealthy")) == (0, 9 * 1024, 1)
    api.vanish("/api/v1/nodes/node-a")
    code, out, _ = run("-o", "json", main=cli.inspect_main)
    assert (code, orjson.loads(out)["nodes"]) == (1, [])


FORBIDDEN = 'nodes is forbidden: User "eve" cannot list'


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (kube.UnreachableError("refused"), "cannot reach the API server: refused"),
        (kube.UnauthorizedError("x"), "the API server does not accept the credentials: x; log in again"),
        (
            kube.ForbiddenError(FORBIDDEN),
            f"not allowed: {FORBIDDEN}; listing nodes and pods of all namespaces is needed",
        ),
        (kube.ServerFaultError("etcd has no leader"), "the API server answered: etcd has no leader"),
        (kube.NotFoundError("no such path"), "the API server answered: no such path"),
    ],
)
def test_a_cluster_that_cannot_be_read_is_one_line_and_exit_code_1(
    failure: kube.KubeError, message: str, api: FakeKube, run: Run
) -> None:
    api.fail_next(lambda _: True, failure)
    assert run(main=cli.inspect_main) == (1, "", f"error: {message}\n")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["node-z"], "error: there is no node node-z\n"),
        (["--kubeconfig", "/nowhere/none"], "error: kubeconfig /nowhere/none: no such file\n"),
        ([], "no node of this cluster shares a GPU: neither aliyun.com/gpu-mem in its status nor an inventory;"),
        (["cpu-only"], "node cpu-only shares no GPU: neither aliyun.com/gpu-mem in its status nor an inventory;"),
    ],
)
def test_what_is_not_there_is_named(
    argv: list[str], told: str, api: FakeKube, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.vanish("/api/v1/nodes/node-a")
    if argv[:1] == ["--kubeconfig"]:
        monkeypatch.undo()
    code, out, err = run(*argv, main=cli.inspect_main)
    assert (code, out) == (1, "")
    assert err.startswith(told)


def test_without_any_cluster_the_three_places_are_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    why = f"no cluster: neither --kubeconfig nor KUBECONFIG is given, and there is no {tmp_path}/.kube/config"
    assert run(main=cli.inspect_main) == (1, "", f"error: {why}\n")


@pytest.mark.parametrize(
    ("environment", "flag", "expected"),
    [
        ({"KUBECONFIG": "/env"}, [], "/env"),
        ({"KUBECONFIG": "/env"}, ["--kubeconfig", "/flag"], "/flag"),
        ({}, [], "{home}/.kube/config"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, [], ""),  # in a pod, as its service account
    ],
)
def test_the_kubeconfig_is_found_as_kubectl_finds_it(
    environment: dict[str, str], flag: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if "KUBERNETES_SERVICE_HOST" not in environment:
        (tmp_path / ".kube").mkdir()
        (tmp_path / ".kube" / "config").touch()
    monkeypatch.delenv("KUBECONFIG", raising=False)
    for name, value in {"HOME": str(tmp_path), **environment}.items():
        monkeypatch.setenv(name, value)
    asked: list[tuple[str, str]] = []

    def connect(path: str, context: str) -> FakeKube:
        asked.append((path, context))
        return api_of()

    monkeypatch.setattr("gpushare.kube.client.connect", connect)
    cli.inspect_main([*flag, "--context", "ctx"])
    assert asked == [(expected.format(home=tmp_path), "ctx")]


@pytest.mark.parametrize("argv", [["-x"], ["a", "b"], ["-o", "xml"], ["--kubeconfig"]])
def test_arguments_that_cannot_be_understood_are_exit_code_2(argv: list[str], run: Run) -> None:
    code, _, err = run(*argv, main=cli.inspect_main)
    assert (code, "usage: kubectl inspect gpushare" in err) == (2, True)
    code, _, err = run("none")
    assert (code, "COMMAND" in err) == (2, True)


def test_the_command_alone_prints_its_help(run: Run) -> None:
    assert run() == run("--help")
    assert run()[0] == 0


def test_scheduler_config_prints_a_file_and_the_flags_that_go_with_it(run: Run, tmp_path: Path) -> None:
    code, out, err = run("scheduler-config", "--server-version", "1.20", "--kind", "policy", "--scheduler-name", "")
    flags = "--policy-config-file=/etc/kubernetes/scheduler-policy.json --kube-api-qps=500 --kube-api-burst=1000"
    assert (code, orjson.loads(out)["kind"], err) == (0, "Policy", f"note: start kube-scheduler with {flags}\n")
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n", encoding="ascii")
    of_https = "scheduler-config", "--server-version", "1.36", "--extender-url", "https://x/y", "--extender-ca"
    assert "caData:" in run(*of_https, str(tmp_path / "ca.pem"))[1]
    assert run(*of_https, "/none.pem") == (2, "", "error: extender CA /none.pem: No such file or directory\n")
    assert run("scheduler-config", "--server-version", "1.23", "--kind", "policy")[0] == 2


def noted(api: FakeKube) -> list[str]:
    err = io.StringIO()
    assert inspect_command.run(api, Streams(out=io.StringIO(), err=err), inspect_command.Options()) == 0
    return err.getvalue().splitlines()


def test_notes_go_to_the_error_stream_with_the_cause() -> None:
    lost = aliyun_pod("odd", gpu=7, mem=1)
    assert noted(api_of([aliyun_node()], [lost])) == [
        "note: pod default/odd: holds memory on GPU index:7, which node node-a does not list"
    ]
    why = "the driver does not say how much memory it has; set --unified-memory"
    inventory = make_inventory(15, 15)
    faulty = replace(inventory.gpus[1], health=GpuHealth.UNHEALTHY, reason="Xid 79: GPU has fallen off the bus")
    left_out = (LeftOut(index=2, reason=why),)
    assert noted(api_of([make_node(replace(inventory, gpus=(inventory.gpus[0], faulty), left_out=left_out))])) == [
        "note: node node-a: GPU1 (GPU-1) is unhealthy: Xid 79: GPU has fallen off the bus; nothing new is placed on it",
        f"note: node node-a: GPU2 is not shared: {why}",
    ]


def test_every_command_has_a_line_in_the_list() -> None:
    listed = cli.command_line().format_help()
    assert "\n\nLook at shared GPUs" in listed
    assert all(re.search(rf"\n    {each.name}(  +|\n {{20,}})\w", listed) for each in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_help_shows_examples_line_by_line(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.examples
    assert cli.main([command.name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for what, typed in command.examples:
        at = lines.index(f"  # {what}")
        assert lines[at + 1] == f"  {typed}"
    assert any(line.startswith("Exit codes: 0") for line in lines)


def test_the_programs_themselves_have_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert (cli.main(["--help"]), cli.inspect_main(["--help"])) == (0, 0)
    out = capsys.readouterr().out
    assert all(what and f"  {command}\n" in out for what, command in (*FIRST, *PLUGIN.examples))
    assert out.count("Exit codes: 0 done; 1 the cluster cannot be read") == 2


@pytest.mark.parametrize(
    "example", sorted({typed for each in COMMANDS for _, typed in each.examples} | {typed for _, typed in FIRST[:-1]})
)
def test_every_example_is_one_that_the_command_takes(example: str) -> None:
    typed = re.search(r"gpushare [^|)>]*", example)
    assert typed is not None
    assert cli.command_line().parse_args(shlex.split(typed[0])[1:]).run


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_each_shell_knows_every_command_and_its_flags(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    (commands,) = (action.choices for action in cli.command_line()._actions if isinstance(action.choices, dict))
    for name, parser in commands.items():
        assert name in script
        for flag in (each for action in parser._actions for each in action.option_strings if each.startswith("--")):
            assert flag.removeprefix("--") in script, flag


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["gpushare", "dr"], {"drain"}),
        (["gpushare", "drain", "node-a/0", "--dry"], {"--dry-run"}),
        (["gpushare", "explain", "-o", ""], {"table", "json", "yaml"}),
        (["gpushare", "explain", "--context", "N"], {""}),
        (["gpushare", "completion", "f"], {"fish"}),
        (["gpushare", "simulate", "--order", ""], {"given", "shuffled", "timestamps"}),
        (["gpushare", "scheduler-config", "--kind", "p"], {"policy"}),
        (["gpushare", "defrag", "-f", "ma"], {"manifest.yaml"}),
    ],
)
def test_bash_completes_as_typed(
    typed: list[str], offered: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a real bash, as if Tab was pressed at the end of the line."""
    assert cli.main(["completion", "bash"]) == 0
    (tmp_path / "complete.sh").write_text(capsys.readouterr().out)
    (tmp_path / "manifest.yaml").touch()
    words = " ".join(map(shlex.quote, typed))
    asked = (
        f'source ./complete.sh; COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; COMP_LINE="{" ".join(typed)}";'
        " COMP_POINT=${#COMP_LINE};"
        " function=$(complete -p gpushare | sed 's/.*-F \\([^ ]*\\).*/\\1/');"
        ' $function gpushare "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}";'
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert {line.strip() for line in done.stdout.splitlines()} == offered, done.stderr


def test_files_are_completed_as_shtab_does_it() -> None:
    assert shtab.FILE.items() >= arguments.FILES.items()


def test_without_its_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    message = "completion needs the library shtab; run: pip install 'gpushare[cli]'"
    assert run("completion", "bash") == (2, "", f"error: {message}\n")
