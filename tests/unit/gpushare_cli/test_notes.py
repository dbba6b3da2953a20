"""A note is one line, whatever the object or the file has from which it quotes."""

import io
from pathlib import Path
from typing import NoReturn

import pytest

from gpushare.kube import api as kube
from gpushare_cli import __main__ as cli
from gpushare_cli import commands
from gpushare_cli.commands import Streams
from testing.builders import make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.calling import reached
from testing.cli.doctor_cluster import healthy
from testing.cli.podding import bound
from testing.cli.simulating import listed, manifest, simulate
from tests.unit.gpushare_cli.clusters import api_of

FORGED = "x\nwarning: all GPUs are lost\r\u2028warning: delete your pods"
NODE = make_node(make_inventory(15, 15))


def beginnings(text: str) -> set[str]:
    """The words with which its lines begin."""
    return {line.partition(" ")[0] for line in text.splitlines()}


def test_inspect_quotes_an_annotation_on_one_line() -> None:
    grant = make_grant(0, gib=3)
    lost = bound("lost", type(grant)(container=grant.container, kind=grant.kind, gpus=(FORGED,), memory_mib=1024))  # type: ignore[arg-type]
    streams = Streams(out=io.StringIO(), err=io.StringIO())
    commands.inspect(api_of([NODE], [lost]), streams, commands.Inspect())
    told = streams.err.getvalue()  # type: ignore[attr-defined] # a StringIO
    assert "holds memory on GPU x warning: all GPUs are lost" in told
    assert beginnings(told) == {"note:"}


def test_simulate_quotes_a_name_on_one_line(tmp_path: Path) -> None:
    lost = bound("holder", make_grant(0, gib=3), namespace="ml", node=FORGED)
    odd = make_pod(make_container(resources={"limits": {"aliyun.com/gpu-memory": 3}}), name=FORGED)
    waits = make_pod(make_container(gpu_mem=99), name=f"b{FORGED}")
    found = simulate(tmp_path, listed(NODE, lost), manifest(odd), listed(waits))
    assert beginnings(found.err) == {"note:"}
    assert "not counted, on nodes that are not in the input: x warning: all GPUs are lost" in found.err
    assert "warning:" not in beginnings(found.out)


def test_an_object_that_is_there_twice_is_named_on_one_line(tmp_path: Path) -> None:
    pod = manifest(make_pod(name=FORGED))
    found = simulate(tmp_path, pod, pod)
    assert found.code == 1
    assert beginnings(found.err) == {"error:"}


@pytest.mark.parametrize("argv", [["inspect"], ["explain", "pod"], ["doctor"]])
def test_what_an_api_server_answers_is_one_line(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(_path: str, _context: str) -> NoReturn:
        raise kube.ServerFaultError(FORGED)

    monkeypatch.setattr("gpushare.kube.client.connect", connect)
    monkeypatch.setattr("gpushare.kube.client.namespace", lambda _path, _context: "default")
    monkeypatch.setenv("KUBECONFIG", "/somewhere")
    assert cli.main(argv) == 1
    assert beginnings(capsys.readouterr().err) == {"error:"}


def test_doctor_says_on_one_line_what_it_still_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpushare_cli.doctor import gather

    gathered = gather.gather

    def slow(*arguments: object) -> object:
        say = arguments[-1]
        assert callable(say)
        say(FORGED)
        return gathered(*arguments)  # type: ignore[arg-type] # passed on as they came

    monkeypatch.setattr(gather, "gather", slow)
    reached(monkeypatch, healthy())

    cli.main(["doctor"])
    said = "x warning: all GPUs are lost warning: delete your pods"
    assert capsys.readouterr().err == f"note: {said}\n"
