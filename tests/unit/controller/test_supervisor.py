"""The supervisor on a clock of the test's own, with a worker that is a few flags."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from random import Random

import pytest

from controller.supervisor import Fence, Supervisor
from gpushare.kube import api as kube
from gpushare.kube.lease import Elector
from gpushare.runtime.clock import Backoff
from testing.clock import ManualClock
from testing.fakes.kube import FakeKube

LEASE = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/lead"
LEASE_S, RENEW_S, RETRY_S, STOP_S, TICK_S = 15.0, 10.0, 2.0, 18.0, 0.1


@dataclass
class FakeWorker:
    """A process that does nothing but beat."""

    clock: ManualClock
    born: float
    code: int | None = None
    asked_at: float = float("nan")
    dead_at: float = float("inf")
    ends_when_asked: bool = True
    stopped: bool = False  # by SIGSTOP

    def exit_code(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.asked_at = self.clock.at
        if self.ends_when_asked:
            self.end(0)

    def kill(self) -> None:
        if self.code is None:
            self.end(-9)

    def end(self, code: int) -> None:
        self.code, self.dead_at = code, self.clock.at


class Stage:
    """One supervisor and all workers that it had."""

    def __init__(self) -> None:
        self.clock, self.api, self.workers = ManualClock(0, self._tick), FakeKube(), list[FakeWorker]()
        self.plans: list[tuple[float, Callable[[], object]]] = []
        self.fence = Fence(self.clock)
        self.is_over = False
        self.births: Callable[[FakeWorker], object] = lambda _: None
        self.led: list[float] = []  # when the worker was allowed to write, at every tick
        self.silences: list[float] = []  # of the supervisor, in seconds, at every tick
        self._numbers = count(1)

    def run(self, *, until: float) -> "Stage":
        self.plans.append((until, lambda: setattr(self, "is_over", True)))
        Supervisor(
            clock=self.clock,
            fence=self.fence,
            spawn=self._spawn,
            elector=self.elector,
            told_to_stop=lambda: self.is_over,
            retry_s=RETRY_S,
            stop_s=STOP_S,
            backoff=Backoff(rng=Random(1)),
        ).run()
        return self

    def at(self, moment: float, act: Callable[[], object]) -> None:
        self.plans.append((moment, act))

    def elector(self) -> Elector:
        identity = f"pod_{next(self._numbers)}"
        return Elector(api=self.api, clock=self.clock, namespace="ns", name="lead", identity=identity)

    def holder(self) -> str:
        return str(self.api.read(LEASE)["spec"]["holderIdentity"])

    def _spawn(self) -> FakeWorker:
        assert all(worker.code is not None for worker in self.workers), "the former worker lives"
        self.workers.append(FakeWorker(self.clock, self.clock.at))
        self.births(self.workers[-1])
        return self.workers[-1]

    def _tick(self, at: float) -> None:
        self.clock.at = round(at, 6)
        due = [act for moment, act in self.plans if moment <= self.clock.at]
        self.plans = [plan for plan in self.plans if plan[0] > self.clock.at]
        for act in due:
            act()
        self.silences.append(round(self.fence.supervisor_silent_s(), 6))
        if self.workers and self.workers[-1].code is None and not self.workers[-1].stopped:
            self.fence.beat()
        if self.fence.leading():
            self.led.append(self.clock.at)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def slow_to_end(stage: Stage, at: float) -> Callable[[FakeWorker], object]:
    def born(worker: FakeWorker) -> None:
        worker.ends_when_asked = False
        stage.at(at, lambda: worker.end(0))

    return born


def test_the_worker_may_write_while_the_lease_is_renewed(stage: Stage) -> None:
    stage.clock.at = 100  # the fence is older than the longest silence
    stage.run(until=200)
    assert len(stage.workers) == 1
    assert len(stage.led) == pytest.approx(1000, abs=2)


def test_an_orderly_end_lets_the_worker_finish_and_releases_the_lease(stage: Stage) -> None:
    stage.births = slow_to_end(stage, 42)
    stage.run(until=30)
    assert (stage.workers[0].asked_at, stage.holder()) == (30, "")
    assert max(stage.led) == pytest.approx(42, abs=2 * TICK_S)  # 12 s later the lease is renewed still
    assert stage.clock.at == pytest.approx(42, abs=2 * TICK_S)


def test_a_worker_that_does_not_end_is_killed_and_its_last_request_outlived(stage: Stage) -> None:
    stage.births = lambda worker: setattr(worker, "ends_when_asked", False)
    stage.run(until=30)
    assert stage.workers[0].code == -9
    assert stage.workers[0].dead_at == pytest.approx(30 + STOP_S, abs=2 * TICK_S)
    assert stage.clock.at >= stage.workers[0].dead_at + LEASE_S - RENEW_S
    assert stage.holder() == ""


def test_a_follower_that_is_told_to_stop_neither_competes_nor_waits(stage: Stage) -> None:
    stage.births = slow_to_end(stage, 20)
    Elector(api=stage.api, clock=stage.clock, namespace="ns", name="lead", identity="other").attempt()
    stage.run(until=LEASE_S - 1)
    assert stage.clock.at == pytest.approx(20, abs=2 * TICK_S)
    assert (stage.led, stage.holder()) == ([], "other")


def test_without_the_api_server_the_worker_dies_and_its_supervisor_leads_later(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """What ended the container, whose restarts the kubelet delays by up to five minutes."""
    cut = kube.UnreachableError("overloaded")
    stage.at(20, lambda: stage.api.fail_next(lambda _: True, cut, times=10**6))
    stage.at(80, stage.api.calm)
    stage.run(until=200)
    first = stage.workers[0]
    assert first.code == -9
    last_renewal = 20 - RETRY_S
    assert last_renewal < first.dead_at <= 20 + RENEW_S + 2 * TICK_S
    silence = [(a, b) for a, b in pairwise(stage.led) if b - a > 1]
    [(lost, regained)] = silence
    assert lost <= first.dead_at
    # Its own former lease has to run out by its own clock, as anybody's.
    assert 80 + LEASE_S <= regained <= 80 + LEASE_S + 2 * RETRY_S
    assert "lead lost" in caplog.messages


def test_after_a_worker_that_ends_comes_another_candidate(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.at(20, lambda: stage.workers[0].end(3))
    held: list[str] = []
    stage.at(20 + LEASE_S - RENEW_S - 1, lambda: held.append(stage.holder()))
    stage.run(until=60)
    assert held == ["pod_1"]  # what the worker sent last may be on its way, so no one leads yet
    assert stage.workers[1].born >= 20 + LEASE_S - RENEW_S
    assert "worker ended" in caplog.messages
    assert not [at for at in stage.led if 20 + 2 * TICK_S < at <= stage.workers[1].born]
    first_again = min(at for at in stage.led if at > 21)
    assert first_again < 20 + LEASE_S  # released: no one has to wait for the lease's end


def test_a_worker_that_is_stopped_is_replaced(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.at(20, lambda: setattr(stage.workers[0], "stopped", True))
    stage.run(until=60)
    assert stage.workers[0].dead_at == pytest.approx(20 + LEASE_S, abs=3 * TICK_S)
    assert len(stage.workers) == 2
    assert "worker silent" in caplog.messages


def test_workers_that_die_at_once_are_started_ever_less_often_until_one_lasts(stage: Stage) -> None:
    def fails_before_200(worker: FakeWorker) -> None:
        if stage.clock.at < 200:
            worker.end(1)

    stage.births = fails_before_200
    stage.at(400, lambda: stage.workers[-1].end(1))
    stage.run(until=500)
    births = [worker.born for worker in stage.workers]
    early = [b - a for a, b in pairwise(at for at in births if at < 200)]
    assert early[0] < 1
    assert all(5 <= gap <= 10.2 for gap in early[-5:])
    assert births[-1] - 400 - (LEASE_S - RENEW_S) < 1  # the one before had lasted


def test_after_a_suspend_nothing_is_written_although_the_supervisor_has_not_run_yet(stage: Stage) -> None:
    seen: list[bool] = []

    def sleep() -> None:
        assert stage.fence.leading()
        stage.clock.at += 3600
        seen.append(stage.fence.leading())

    stage.at(20, sleep)
    stage.run(until=3700)
    assert (seen, stage.workers[0].code) == ([False], -9)


def test_the_worker_can_see_that_its_supervisor_stands_still(stage: Stage) -> None:
    stage.run(until=30)
    assert max(stage.silences) <= TICK_S
    stage.clock.at += 100
    assert stage.fence.supervisor_silent_s() == pytest.approx(100, abs=2 * TICK_S)


BEGIN = """
import os, signal, sys, threading, time
from controller.supervisor import fork
from gpushare.runtime.process import Signals

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
    argv = [sys.executable, "-c", BEGIN + textwrap.dedent(program)]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, cwd=Path.cwd())
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_a_workers_exit_code_is_its_tasks_and_one_that_is_stopped_can_be_killed() -> None:
    program = """
        print(*[ended(fork(task)) for task in (lambda: 0, lambda: 7, lambda: sys.exit(3), lambda: 1 / 0)])
        worker = fork(sleep)
        os.kill(worker.pid, signal.SIGSTOP)
        while state(worker.pid) != "T":
            time.sleep(0.01)
        assert worker.exit_code() is None
        worker.kill()
        print(worker.exit_code(), os.path.exists(f"/proc/{worker.pid}"))
        worker.kill(), worker.terminate()  # its number may be another's now
        """
    assert run(program) == "0 7 3 1\n-9 False\n"


def test_a_signal_is_not_the_supervisors_and_the_workers_and_orphans_leave_no_zombies() -> None:
    """The first process of a container inherits what `kubectl exec` leaves behind."""
    program = """
        signals = Signals()
        signals.install()
        worker = fork(lambda: signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and sleep())
        worker.terminate()
        print(ended(worker), signals.number)
        worker, orphan = fork(sleep), os.fork()
        if not orphan:
            os._exit(0)
        while state(orphan) != "Z":
            time.sleep(0.01)
        print(worker.exit_code(), os.path.exists(f"/proc/{orphan}"))
        worker.kill()
        """
    assert run(program) == "-15 0\nNone False\n"
