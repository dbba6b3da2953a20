"""`gpushare top` as a user starts it: in a terminal of 80 columns, and with its output in a pipe."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.kube import api as kube
from testing import clusters
from testing.fakes import kube_http
from testing.fakes.kube import FakeKube

OPEN, CLOSE = b"\x1b[?1049h", b"\x1b[?1049l"
COLOUR = re.compile(rb"\x1b\[[0-9]+m")
COMMAND = re.compile(rb"\x1b\[[?0-9]*[A-Za-z]")


@pytest.fixture
def api() -> Iterator[FakeKube]:
    found = clusters.small()
    yield found
    found.close()


@pytest.fixture
def argv(api: FakeKube, tmp_path: Path) -> Iterator[list[str]]:
    config = tmp_path / "config"
    with kube_http.serving(api) as url:
        config.write_text(kube_http.kubeconfig(url))
        yield [sys.executable, "-m", "gpushare_cli", "top", "--kubeconfig", str(config)]


class Terminal:
    """A program in a terminal of 80 columns and 24 lines."""

    def __init__(self, argv: list[str], **variables: str) -> None:
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
        environ = {**kept, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **variables}
        self.process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=environ)
        os.close(theirs)
        self.seen = b""

    def resize(self, lines: int, columns: int) -> None:
        """As a user who drags its corner."""
        fcntl.ioctl(self._mine, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, words: str) -> bytes:
        """Everything up to the moment at which it shows this."""
        while words.encode() not in COMMAND.sub(b"", self.seen):
            self.seen += os.read(self._mine, 65536)
        return self.seen

    def end(self) -> bytes:
        """Tell it to end; all that it has shown."""
        self.process.send_signal(signal.SIGINT)
        while True:
            try:
                self.seen += os.read(self._mine, 65536)
            except OSError:  # the other end is closed
                break
        self.process.wait()
        os.close(self._mine)
        return self.seen


def test_in_a_terminal_it_follows_the_cluster_and_leaves_the_screen_as_it_was(api: FakeKube, argv: list[str]) -> None:
    terminal = Terminal(argv)
    terminal.until("14/15 GiB")
    terminal.until("research/train-llm")
    clusters.add_pod(api, clusters.running("late", clusters.gpus(0, 2)[1].uuid, 5, on=clusters.name_of(0)))
    terminal.until("9/15 GiB")
    seen = terminal.end()
    assert terminal.process.returncode == 0
    assert seen.startswith(OPEN)
    assert seen.endswith(CLOSE)
    assert COLOUR.search(seen)
    screens = COMMAND.sub(b"", seen).decode().split("\r\n")
    assert max(map(len, screens)) <= 160  # the last line of a screen and the first of the next one are not apart


@pytest.mark.parametrize(
    ("variables", "command"), [({"NO_COLOR": "1"}, COLOUR), ({"TERM": "dumb"}, re.compile(b"\x1b"))]
)
def test_a_terminal_gets_only_what_it_takes(
    variables: dict[str, str], command: re.Pattern[bytes], argv: list[str]
) -> None:
    terminal = Terminal(argv, **variables)
    terminal.until("14/15 GiB")
    assert not command.search(terminal.end())


def printed(argv: list[str]) -> tuple[str, str]:
    done = subprocess.run(argv, capture_output=True, check=True, text=True)
    return done.stdout, done.stderr


def test_in_a_pipe_it_prints_once_and_plainly_also_while_watches_fail(api: FakeKube, argv: list[str]) -> None:
    api.fail_next(lambda call: call.verb == "watch", kube.ServerFaultError("not now"), times=1000)
    out, err = printed(argv)
    assert ("\x1b" in out, err) == (False, "")
    for words in ("14/15 GiB", "used 11", "needs 14 GiB on one GPU; free per GPU on gpu-0000: 1, 11 GiB"):
        assert words in out


def test_nodes_that_are_named_are_shown_alone(argv: list[str]) -> None:
    out, err = printed([*argv, "none"])
    assert ("gpu-0000  " in out, err) == (False, "note: node none is not among those that share GPUs\n")


def test_a_terminal_that_gets_narrower_has_no_line_that_is_wider(argv: list[str]) -> None:
    terminal = Terminal(argv)
    terminal.until("14/15 GiB")
    terminal.resize(24, 40)
    terminal.seen = b""
    terminal.until("free; USED where")
    last = terminal.end().split(b"\x1b[H")[-1]
    assert max(len(line.decode()) for line in COMMAND.sub(b"", last).splitlines()) <= 40
