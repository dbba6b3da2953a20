"""Completion and examples: what a shell offers, and that every example is one that the command takes."""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare_cli import __main__ as cli
from gpushare_cli.completion import SHELLS
from gpushare_cli.examples import EXAMPLES, FIRST, PLUGIN


def commands() -> dict[str, argparse.ArgumentParser]:
    (found,) = (action.choices for action in cli.command_line()._actions if isinstance(action.choices, dict))
    return dict(found)


def test_every_command_has_examples() -> None:
    assert commands().keys() == EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_help_shows_its_examples_line_by_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for what, command in EXAMPLES[name]:
        at = lines.index(f"  # {what}")
        assert lines[at + 1] == f"  {command}"
    assert any(line.startswith("Exit codes: 0") for line in lines)


def test_the_programs_themselves_have_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert (cli.main(["--help"]), cli.inspect_main(["--help"])) == (0, 0)
    out = capsys.readouterr().out
    assert all(f"  {command}\n" in out for _, command in (*FIRST, *PLUGIN))


ALL = [*(each for examples in EXAMPLES.values() for each in examples), *FIRST[:-1]]


@pytest.mark.parametrize("command", sorted({command for _, command in ALL}))
def test_every_example_is_one_that_the_command_takes(command: str) -> None:
    typed = re.search(r"gpushare [^|)>]*", command)
    assert typed is not None
    assert cli.command_line().parse_args(shlex.split(typed[0])[1:]).handler


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_each_shell_knows_every_command_and_its_flags(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name, parser in commands().items():
        assert name in script
        for flag in (each for action in parser._actions for each in action.option_strings if each.startswith("--")):
            assert flag.removeprefix("--") in script, flag


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["gpushare", "dr"], {"drain"}),
        (["gpushare", "drain", "node-a/0", "--dry"], {"--dry-run"}),
        (["gpushare", "explain", "-o", ""], {"table", "json", "yaml"}),
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


def test_without_its_library_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 2
    message = "error: completion needs the library shtab; run: pip install 'gpushare[cli]'\n"
    assert capsys.readouterr().err == message
