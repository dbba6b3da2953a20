"""What measurements say to wrong arguments, before they measure."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import churn, report, trace, trace_scheduled, trace_simulated
from testing import traces

Main = Callable[[Sequence[str]], int]
ON_A_TRACE: Sequence[Main] = (trace.main, trace_simulated.main, trace_scheduled.main)


def said(capsys: pytest.CaptureFixture[str], main: Callable[[], object]) -> tuple[object, str]:
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code, capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("main", [*ON_A_TRACE, churn.main])
def test_a_directory_without_a_trace(main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, lambda: main([str(tmp_path)]))

    assert code == 2
    assert text.endswith(
        f"{tmp_path}: no openb_node_list_gpu_node.csv there; name the directory of Alibaba's cluster-trace-gpu-v2023"
    )


@pytest.mark.parametrize("main", ON_A_TRACE)
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--seeds", ""], "'': write at least one number, such as 42-51 or 1,2,3"),
        (["--seeds", "x"], "'x': write at least one number, such as 42-51 or 1,2,3"),
        (["--seeds", "5-1"], "'5-1': write at least one number, such as 42-51 or 1,2,3"),
        (["--policies", "dense,best"], "'dense,best': no 'best' here; write some of "),
        (["--policies", ""], "'': no '' here; write some of "),
    ],
)
def test_seeds_and_policies_that_are_none(
    main: Main, given: Sequence[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = said(capsys, lambda: main([str(traces.small(tmp_path)), *given]))

    assert code == 2
    assert f"error: argument {given[0]}: {text}" in found


@pytest.mark.parametrize("main", [trace_simulated.main, trace_scheduled.main])
def test_a_row_that_is_none(main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = said(capsys, lambda: main([str(traces.small(tmp_path)), "--rows", "best"]))

    assert code == 2
    assert "error: argument --rows: 'best': no 'best' here; write some of ranked, default, most-allocated" in found


def test_a_trace_that_the_directory_lacks(tmp_path: Path) -> None:
    directory = traces.small(tmp_path)
    with pytest.raises(SystemExit) as caught:
        trace.main([str(directory), "--traces", "other", "--seeds", "1"])

    name = "openb_pod_list_other.csv"
    assert caught.value.code == f"error: {directory / name}: no such file, nor {name}.gz"


def test_a_measurement_on_a_trace_needs_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "churn"])

    code, text = said(capsys, bench.main)
    assert (code, text.partition("error: ")[2]) == (
        2,
        "--only churn: needs --trace DIRECTORY (make bench TRACE=DIRECTORY)",
    )


def test_no_page_is_written_from_a_directory_without_figures(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        report.main([str(tmp_path), str(tmp_path / "docs")])

    assert str(caught.value.code).startswith(f"error: {tmp_path}: no figures there (*.json); `make bench` writes them")
    assert not (tmp_path / "docs").exists()
