"""Runs the tests of a mutant in a fork of a process that has loaded them; no file is changed."""

import contextlib
import functools
import gc
import importlib
import inspect
import marshal
import math
import os
import resource
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final, Generic, Literal, NoReturn, TypeVar

import pytest

from release.mutants import OPTIONS
from release.mutants.changes import Mutant
from release.mutants.child import sitecustomize

PRELOADED: Final = ("hypothesis.stateful", "flask", "orjson", "prometheus_client", "cryptography.x509", "yaml")
MEMORY: Final = 4 << 30  # bytes of address space; a loop that no longer ends must not take the machine with it
CPU_S: Final = 30  # for the tests of one mutant; then those that are left are left out
WALL_S: Final = 400  # for a mutant's tests, which may wait for what it keeps from coming

T = TypeVar("T")
Outcome = Literal["killed", "survived", "timed out", "not covered", "refused by mypy"]


@dataclass(frozen=True, slots=True)
class Job:
    """A mutant, what its module compiles to without it and with it, and the tests to run."""

    mutant: Mutant
    original: CodeType
    changed: CodeType
    tests: Sequence[str]
    left_out: int


class Pool(Generic[T]):
    """So many forks at a time, for so long, each in a session and with a temporary directory of its own."""

    def __init__(self, size: int, report: Callable[[T, int, float], None], wall_s: float = math.inf) -> None:
        self._size = size
        self._report = report
        self._wall_s = wall_s
        self._running: dict[int, tuple[T, str, float]] = {}

    def fork(self, job: T) -> bool:
        """Fork once there is room; true in the child."""
        while len(self._running) >= self._size:
            self._wait()
        directory = tempfile.mkdtemp(prefix="m-")
        pid = os.fork()
        if pid == 0:
            os.setsid()
            tempfile.tempdir = directory
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            return True
        self._running[pid] = job, directory, time.monotonic() + self._wall_s
        return False

    def finish(self) -> None:
        while self._running:
            self._wait()

    def _wait(self) -> None:
        while not (ended := os.wait4(-1, os.WNOHANG))[0]:
            time.sleep(0.05)
            for pid in [pid for pid, (*_, until) in self._running.items() if time.monotonic() > until]:
                os.kill(pid, signal.SIGKILL)
        pid, status, used = ended
        job, directory, _ = self._running.pop(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what a test has started and not ended
        shutil.rmtree(directory, ignore_errors=True)
        self._report(job, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)


def outcome(status: int) -> Outcome:
    """What the exit status of a mutant's tests says."""
    if status in {-signal.SIGXCPU, -signal.SIGKILL}:
        return "timed out"
    return "killed" if status else "survived"


def end_with(run: Callable[[], int]) -> NoReturn:
    """End this process with the status that it returns."""
    status = 3
    try:
        status = run()
    finally:
        os._exit(status)


def run_pytest(log: Path, arguments: Sequence[str], plugin: object) -> int:
    """Run pytest, writing to a file; its exit status."""
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(written, stream)
    return int(pytest.main([*OPTIONS, *arguments], plugins=[plugin]))


class _Budget:
    """Leaves out the tests after the budget is spent."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        return True if time.process_time() > CPU_S else None


class Forks(_Budget):
    """Forks pytest once it has collected all tests, and changes the code of the functions that are loaded."""

    def __init__(self, jobs: Sequence[Job], pool: Pool[Job]) -> None:
        self._jobs = jobs
        self._pool = pool

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        items = {item.nodeid: item for item in session.items}
        functions = loaded_functions()
        gc.collect()
        gc.freeze()
        control = os.fork()
        if control == 0:
            session.items = [items[test] for test in {job.tests[0] for job in self._jobs} & items.keys()]
            return None
        if os.waitpid(control, 0)[1]:
            session.testsfailed = 1  # without any change
            return True
        for job in self._jobs:
            pairs = changed_functions(job.original, job.changed)
            if not pairs or any(_key(old) not in functions for old, _ in pairs):
                continue  # it runs at import: for `in_new_process`
            if self._pool.fork(job):
                _change(job)
                for old, new in pairs:
                    for function in functions[_key(old)]:
                        function.__code__ = new
                session.items = [items[test] for test in job.tests if test in items]
                return None
        self._pool.finish()
        return True


def in_loaded_process(jobs: Sequence[Job], pool: Pool[Job], log: Path) -> int:
    """Run what changes functions only, in forks of one that has loaded everything; the rest is passed over."""
    files = sorted({test.partition("::")[0] for job in jobs for test in job.tests})
    if not files:
        return 0
    pid = os.fork()
    if pid == 0:
        end_with(lambda: run_pytest(log, ["-x", *files], Forks(jobs, pool)))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_new_process(jobs: Sequence[Job], pool: Pool[Job], log: Path) -> None:
    """Run each in a fork that has loaded nothing of the product yet."""
    for name in PRELOADED:
        importlib.import_module(name)
    for job in jobs:
        if pool.fork(job):
            _change(job)
            end_with(functools.partial(run_pytest, log, ["-x", *job.tests], _Budget()))
    pool.finish()


def _change(job: Job) -> None:
    """Serve the module with the change, here and in programs that tests start, and end this process if tests run on."""
    resource.setrlimit(resource.RLIMIT_CPU, (2 * CPU_S, 2 * CPU_S + 5))
    path = str(Path.cwd() / job.mutant.file)
    code = Path(tempfile.mkdtemp()) / "code"
    code.write_bytes(marshal.dumps(job.changed))
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    given = os.pathsep.join(filter(None, [str(Path(sitecustomize.__file__).parent), *known]))
    os.environ |= {sitecustomize.MODULE: path, sitecustomize.CODE: str(code), "PYTHONPATH": given}
    sitecustomize.serve(path, job.changed)


Key = tuple[str, str, int, bytes]


def _key(code: CodeType) -> Key:
    return code.co_filename, code.co_qualname, code.co_firstlineno, code.co_code


def loaded_functions() -> Mapping[Key, Sequence[FunctionType]]:
    """All functions of this process by their code, which is not hashed: it changes as it is used."""
    found = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType):
            found[_key(one.__code__)].append(one)
    return found


def changed_functions(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    """The outermost functions that differ; None if what runs at import does."""
    if old == new:
        return []
    if old.co_flags & inspect.CO_NEWLOCALS:  # a function; no module, no class
        return [(old, new)] if len(old.co_freevars) == len(new.co_freevars) else None
    inner = [[one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new)]
    if _alone(old) != _alone(new) or len(inner[0]) != len(inner[1]):
        return None
    found = [changed_functions(*pair) for pair in zip(*inner, strict=True)]
    return None if None in found else [pair for pairs in found for pair in pairs or ()]


def _alone(code: CodeType) -> tuple[object, ...]:
    """Without the functions and classes that it defines."""
    constants = [repr(one) for one in code.co_consts if not isinstance(one, CodeType)]
    return code.co_code, code.co_names, constants
