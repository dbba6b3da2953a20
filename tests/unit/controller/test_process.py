"""Forked workers, each test in an interpreter of its own: the one that runs the tests has threads and children."""

import subprocess
import sys
import textwrap
from pathlib import Path

BEGIN = """
import os, signal, sys, threading, time
from controller.fence import Fence
from controller.process import fork
from gpushare.runtime.clock import SystemClock
from gpushare.runtime.signals import Signals

def ended(worker):
    while worker.exit_code() is None:
        time.sleep(0.01)
    return worker.exit_code()

def sleep():
    time.sleep(600)
    return 0

def state(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]
"""


def run(program: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path.cwd(),
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_a_workers_exit_code_is_its_tasks() -> None:
    program = """
        codes = [ended(fork(task)) for task in (lambda: 0, lambda: 7, lambda: sys.exit(3), lambda: 1 / 0)]
        print(*codes)
        """
    assert run(program) == "0 7 3 1\n"


def test_a_worker_that_is_stopped_can_be_killed() -> None:
    program = """
        worker = fork(sleep)
        os.kill(worker.pid, signal.SIGSTOP)
        while state(worker.pid) != "T":
            time.sleep(0.01)
        assert worker.exit_code() is None
        worker.kill()
        print(worker.exit_code(), os.path.exists(f"/proc/{worker.pid}"))
        worker.kill(), worker.terminate()  # its number may be another's now
        """
    assert run(program) == "-9 False\n"


def test_a_signal_to_the_supervisor_is_not_the_workers_and_the_other_way_round() -> None:
    program = """
        signals = Signals()
        signals.install()
        worker = fork(sleep)
        worker.terminate()
        print(ended(worker), signals.number)
        """
    assert run(program) == "-15 0\n"


def test_orphans_of_the_container_leave_no_zombies() -> None:
    """The first process of a container inherits what `kubectl exec` leaves behind."""
    program = """
        worker, orphan = fork(sleep), os.fork()
        if not orphan:
            os._exit(0)
        while state(orphan) != "Z":
            time.sleep(0.01)
        print(worker.exit_code(), os.path.exists(f"/proc/{orphan}"))
        worker.kill()
        """
    assert run(program) == "None False\n"


def test_worker_and_supervisor_see_the_same_fence() -> None:
    program = """
        fence, clock = Fence(SystemClock()), SystemClock()
        begun = clock.monotonic()

        def wait_for_the_lead():
            while not fence.leading():
                time.sleep(0.01)
            while fence.leading():
                time.sleep(0.01)
            fence.beat()
            return 5

        worker = fork(wait_for_the_lead)
        fence.lead_until(clock.monotonic() + 0.3)
        print(ended(worker), fence.worker_silent_s() < clock.monotonic() - begun - 0.2)
        """
    assert run(program) == "5 True\n"
