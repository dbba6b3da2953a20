"""How programs start, what they need of the libraries, and how they log and end."""

import gc
import importlib.metadata
import io
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import gpushare
from gpushare import launch
from gpushare.errors import SettingsError
from gpushare.runtime import logs, options, process
from gpushare.runtime.clock import Backoff, SystemClock
from gpushare.runtime.options import option
from gpushare.units import GIB, MemoryUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a test component can be told."""

    memory_unit: MemoryUnit = option(GIB, "Unit of gpu-mem.", parse=MemoryUnit.parse)
    port: int = option(8443, "TCP port.", parse=options.port)
    mode: str = option("auto", "One of two.", parse=options.choice("auto", "never"))
    verbose: bool = option(False, "More words.", parse=options.boolean)
    wait_s: float = option(2.0, "Seconds.", parse=options.positive)


def load(*argv: str, **environ: str) -> Settings:
    return options.load(Settings, argv, prog="test", environ=environ)


def test_a_flag_beats_the_environment_and_the_environment_the_default() -> None:
    assert load() == Settings()
    assert load(GPUSHARE_MEMORY_UNIT="MiB").memory_unit == MemoryUnit(1)
    assert load("--memory-unit", "256MiB", GPUSHARE_MEMORY_UNIT="MiB").memory_unit == MemoryUnit(256)
    assert load("--verbose", "yes", "--wait-s=0.5", "--mode", "never") == Settings(
        verbose=True, wait_s=0.5, mode="never"
    )
    assert load(GPUSHARE_VERBOSE="0").verbose is False


@pytest.mark.parametrize("case", (Path(__file__).parent / "golden/settings.txt").read_text().splitlines())
def test_a_bad_setting_says_where_it_came_from(case: str) -> None:
    name, value, _, problem = case.split(" ", 3)
    with pytest.raises(SettingsError, match=f"^{name}='{value}': {problem}$"):
        load(*([name, value] if name.startswith("--") else []), **{name: value})


def test_help_tells_flag_variable_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "--wait-s VALUE Seconds. [GPUSHARE_WAIT_S; 2]" in shown


def test_backoff_doubles_up_to_its_cap_and_starts_again_after_a_success() -> None:
    backoff = Backoff(first_s=1, cap_s=4, rng=random.Random(1))
    caps = [1, 2, 4, 4]
    delays = [backoff.next_s() for _ in caps]
    assert all(cap / 2 <= delay <= cap for delay, cap in zip(delays, caps, strict=True))
    backoff.reset()
    assert backoff.next_s() <= 1


@pytest.fixture
def stream() -> io.StringIO:
    """What is logged, from here on."""
    stream = io.StringIO()
    logs.configure(stream=stream)
    return stream


def test_a_log_line_is_json_with_the_fields_of_the_decision(stream: io.StringIO) -> None:
    logs.event(logging.getLogger("x"), "bound", pod="default/a", gpus=["GPU-1"])
    logs.event(logging.getLogger("x"), "detail", level=logging.DEBUG)
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts"))
    assert line == {"level": "info", "logger": "x", "event": "bound", "pod": "default/a", "gpus": ["GPU-1"]}


def test_a_log_line_neither_looks_for_its_caller_nor_is_endless_by_what_others_wrote(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(logging.Logger, "findCaller")
    logs.event(logging.getLogger("x"), "refused", error="x" * 100_000, short="y" * 2000)
    line = json.loads(stream.getvalue())
    assert (line["error"], line["short"]) == ("x" * 1996 + " ...", "y" * 2000)


@pytest.mark.parametrize("text", [True, False])
def test_a_logged_error_has_its_stack(text: bool) -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, text=text, level="debug")
    try:
        dict[str, str]()["lost"]
    except KeyError:
        logs.event(logging.getLogger("x"), "failed", level=logging.ERROR, exc_info=True, pod="a")
    assert "KeyError: 'lost'" in stream.getvalue()
    assert ("ERROR   x failed pod=a" in stream.getvalue()) is text


def test_the_same_is_told_once_until_it_is_well_or_gone(caplog: pytest.LogCaptureFixture) -> None:
    changes = logs.Changes(logging.getLogger("test"))
    for about, problem in (("a", 1), ("a", 1), ("b", 1), ("a", 2), ("a", 2)):
        changes.say("broken", about, level=logging.WARNING, problem=problem)
    assert len(caplog.records) == 3
    changes.clear("a")
    changes.say("broken", "a", level=logging.WARNING, problem=2)
    changes.say("broken", "b", level=logging.WARNING, problem=1)
    assert len(caplog.records) == 4
    changes.keep({"a"})
    changes.say("broken", "b", level=logging.WARNING, problem=1)
    assert len(caplog.records) == 5


def test_a_group_ends_when_its_first_part_ends_or_a_signal_comes() -> None:
    ended = []

    def waits(stop: threading.Event) -> None:
        stop.wait()
        ended.append("waits")

    assert process.run({"waits": waits, "ends": lambda _stop: None}) == 1
    assert ended == ["waits"]


def test_parts_that_fail_or_do_not_end_are_named(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_stop: threading.Event) -> None:
        raise RuntimeError("boom")

    assert process.run({"fails": fails}) == 1
    assert "part failed" in caplog.messages
    release = threading.Event()
    process.run({"stuck": lambda _stop: (release.wait(), None)[1], "ends": lambda _stop: None}, grace_s=0.05)
    release.set()
    assert "part did not end" in caplog.messages


def test_a_signal_ends_the_group_without_an_error_also_in_the_middle_of_the_events_own_lock() -> None:
    class Busy(threading.Event):
        """The signal arrives while the main thread holds what `set` would need."""

        is_locked = False

        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread() is threading.main_thread():
                self.is_locked = True
                signal.raise_signal(signal.SIGTERM)
                self.is_locked = False
            return super().wait(timeout)

        def set(self) -> None:
            assert not self.is_locked, "this would wait forever"
            super().set()

    before = signal.getsignal(signal.SIGTERM)
    assert process.run({"waits": lambda stop: (stop.wait(), None)[1]}, stop=Busy()) == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_fails_after_a_signal_is_no_failure_of_the_process(caplog: pytest.LogCaptureFixture) -> None:
    def interrupted(stop: threading.Event) -> None:
        signal.raise_signal(signal.SIGINT)  # a handler runs in the main thread
        stop.wait()
        raise RuntimeError("ended in the middle")

    with caplog.at_level(logging.INFO):
        assert process.run({"interrupted": interrupted}) == 0
    assert {"signal", "part failed"} <= {*caplog.messages}


def test_garbage_is_collected_again_once_the_last_collection_is_read_and_what_is_there_is_frozen() -> None:
    paused = type(process.COLLECTOR_PAUSED)()
    frozen = gc.get_freeze_count()
    try:
        with paused:
            assert not gc.isenabled()
            with paused:
                kept: list[list[int]] = [[] for _ in range(10_000)]
            assert not gc.isenabled()
            assert gc.get_freeze_count() == frozen
        assert gc.isenabled()
        assert gc.get_freeze_count() >= frozen + len(kept)
    finally:
        gc.unfreeze()
        gc.enable()


def test_a_stuck_log_does_not_keep_a_process_that_has_to_end() -> None:
    program = """
import logging, threading
from gpushare.runtime import process
class Stuck(logging.Handler):
    def flush(self):
        print("flushed", flush=True)
        threading.Event().wait()
logging.getLogger().addHandler(Stuck())
process.exit_now(3)
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=False, capture_output=True)
    assert (ended.returncode, ended.stdout) == (3, b"flushed\n")


def test_the_systems_clock_waits_until_the_event_and_counts_time_in_suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    stop = threading.Event()
    assert clock.wait(stop, 0.001) is False
    stop.set()
    assert clock.wait(stop, 60) is True
    assert clock.now().tzinfo is not None
    assert clock.monotonic() <= clock.monotonic()
    # A lease that is measured by a clock that stops in suspend is believed when it has long ended.
    awake_s, asleep_s = 100.0, 3600.0
    monkeypatch.setattr(time, "monotonic", lambda: awake_s)
    monkeypatch.setattr(
        time, "clock_gettime", lambda clock: awake_s + (asleep_s if clock == time.CLOCK_BOOTTIME else 0.0)
    )
    assert SystemClock().monotonic() == awake_s + asleep_s


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_process_interrupts_it(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # under nohup, SIGHUP is ignored

    def told() -> None:
        with process.as_interrupt():
            os.kill(os.getpid(), number)
            signal.pause()

    try:
        with pytest.raises(KeyboardInterrupt):
            told()
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with process.as_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


MODULES = {
    "webhook": "webhook.main",
    "controller": "controller.main",
    "device-plugin": "deviceplugin.main",
    "cli": "gpushare_cli.__main__, kubernetes.config",
}
DENY = """
import sys
class Deny:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {denied!r}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Deny())
"""


def canonical(name: str) -> str:
    return name.lower().replace("_", "-")


def needed(extra: str) -> set[str]:
    """The distributions that an installation with this extra brings."""
    waiting = [Requirement(f"gpushare[{extra}]")]
    found: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        for text in importlib.metadata.requires(requirement.name) or ():
            each = Requirement(text)
            markers = [
                each.marker is None or each.marker.evaluate({"extra": name}) for name in requirement.extras or {""}
            ]
            if any(markers) and canonical(each.name) not in found:
                found.add(canonical(each.name))
                waiting.append(each)
    return found


def denied(extra: str) -> set[str]:
    """Importable modules of all other installed distributions."""
    allowed = needed(extra) | {"gpushare"}
    providers = importlib.metadata.packages_distributions()
    return {
        module
        for module, distributions in providers.items()
        if not {canonical(each) for each in distributions} & allowed and module not in sys.stdlib_module_names
    } - {"gpushare", "webhook", "controller", "deviceplugin", "certs", "gpushare_cli"}


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("extra", MODULES)
def test_a_component_needs_no_library_outside_of_its_extra(extra: str) -> None:
    ran = run(DENY.format(denied=denied(extra)) + f"import {MODULES[extra]}")

    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_controller_needs_no_web_framework_and_the_command_line_neither_grpc_nor_nvml() -> None:
    assert {"flask", "gunicorn", "jsonpatch", "cryptography"} <= denied("controller")
    assert {"grpc", "pynvml", "flask", "gunicorn", "cryptography"} <= denied("cli")


@pytest.mark.parametrize(
    ("function", "command", "library", "extra"),
    [
        ("webhook", "gpushare-webhook", "flask", "webhook"),
        ("controller", "gpushare-controller", "prometheus_client", "controller"),
        ("cli", "gpushare", "yaml", "cli"),
        ("inspect", "kubectl-inspect-gpushare", "yaml", "cli"),
    ],
)
def test_a_missing_library_names_the_extra_to_install(function: str, command: str, library: str, extra: str) -> None:
    ran = run(DENY.format(denied={library}) + f"from gpushare import launch\nsys.exit(launch.{function}())")

    assert ran.returncode == 2
    assert ran.stderr == f"{command}: the library {library} is missing; run: pip install 'gpushare[{extra}]'\n"


def test_a_missing_module_of_ours_is_no_library_and_a_kubeconfigs_library_names_its_extra() -> None:
    ran = run(DENY.format(denied={"controller"}) + "from gpushare import launch\nsys.exit(launch.controller())")
    assert "ModuleNotFoundError: No module named 'controller'" in ran.stderr
    code = DENY.format(denied={"kubernetes"}) + "from gpushare.kube import client\nclient.connect('/nowhere')"

    ran = run(code)

    assert ran.stderr.splitlines()[-1] == (
        "gpushare.errors.SettingsError: a kubeconfig needs the library kubernetes; run: pip install 'gpushare[cli]', "
        "or leave the kubeconfig away to use the pod's service account"
    )


@pytest.mark.parametrize(
    ("function", "command"),
    [
        *(("cli", "gpushare"), ("inspect", "kubectl inspect gpushare"), ("webhook", "gpushare-webhook")),
        *(("controller", "gpushare-controller"), ("device_plugin", "gpushare-device-plugin")),
    ],
)
def test_every_command_tells_its_version(
    function: str, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [command, "--version"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        status = getattr(launch, function)()
    except SystemExit as end:
        status = end.code
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (status, capsys.readouterr().out) == (0, f"{command} {gpushare.__version__}\n")


ROOT = Path(__file__).parents[2]
NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
ENDLESS_IMPORT = "import sys\nsys.stdout.write('importing')\nsys.stdout.flush()\nsys.stdin.read()\n"


@pytest.mark.parametrize("component", ["webhook", "controller", "deviceplugin"])
def test_sigterm_ends_it_while_its_libraries_are_imported(component: str, tmp_path: Path) -> None:
    """Which takes seconds on a busy node; the pod would wait for SIGKILL, its whole grace period."""
    (tmp_path / "orjson.py").write_text(ENDLESS_IMPORT)
    with subprocess.Popen(
        [*NAMESPACE, sys.executable, "-m", component, "--node-name=node-a"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as outside:
        assert outside.stdout is not None
        try:
            assert outside.stdout.read(9) == b"importing"
            [first] = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
            os.kill(int(first), signal.SIGTERM)
            assert outside.wait() == 128 + signal.SIGTERM
        finally:
            outside.kill()
