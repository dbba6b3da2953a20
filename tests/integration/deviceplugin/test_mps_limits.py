"""The supervisor of the MPS daemon, over programs that answer as NVIDIA's do, and the back end that asks it."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from deviceplugin import mps, pods
from deviceplugin.causes import Cause, Code
from deviceplugin.cdi import Mount
from deviceplugin.limits.mps import MpsBackend
from deviceplugin.limits.node import PROVEN, LimitError
from deviceplugin.mps import MpsControl, MpsError, Supervisor
from gpushare.errors import WireError
from gpushare.runtime.clock import SystemClock
from gpushare.units import ResourceConfig
from testing.builders import Json, make_grant, make_inventory
from testing.clock import ManualClock
from testing.deviceplugin.build import bound_pod
from testing.deviceplugin.limits import start_of
from testing.deviceplugin.running import in_threads
from testing.fakes.kubelet import wait_until
from testing.nvml import mps_programs

INVENTORY: Final = make_inventory(15, 15)


class Node:
    """The programs' state, a supervisor that is not running yet, and the back end."""

    def __init__(self, directory: Path) -> None:
        self.state, self.mps = directory / "state", directory / "mps"
        self.state.mkdir()
        self.supervisor = Supervisor(control=MpsControl(self.mps, directory / "shm"), clock=SystemClock())
        self.pods: list[Json] = []
        self.backend = MpsBackend(
            directory=self.mps,
            shared_memory=Path("/dev/shm/gpushare-mps"),
            held=lambda inventory: pods.held(self.pods, inventory, ResourceConfig()),
        )

    def log(self) -> list[str]:
        path = self.state / "log"
        return path.read_text(encoding="ascii").splitlines() if path.exists() else []

    def queries(self) -> int:
        """How often the driver was asked for the compute modes."""
        return (self.state / "queries").read_text(encoding="ascii").count("\n")

    def pid(self) -> int:
        return int((self.mps / "pipe/control.pid").read_text(encoding="ascii"))

    def problems(self) -> list[Cause]:
        found = list(self.backend.prove(INVENTORY.gpus).values())
        assert Code.OTHER not in [why.code for why in found]
        return found

    @contextmanager
    def running(self) -> Iterator[None]:
        with in_threads(self.supervisor.run, self.supervisor.serve):
            wait_until(lambda: self.problems() == [PROVEN, PROVEN])
            yield


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path)
    for deadline in ("_TIMEOUT_S", "_PEER_S", "_ASK_S"):
        monkeypatch.setattr(f"deviceplugin.mps.{deadline}", 250.0)  # a busy machine is slow
    monkeypatch.setenv("PATH", str(mps_programs.install(node.state)), prepend=os.pathsep)
    return node


def test_the_daemon_runs_for_all_users_on_gpus_that_only_it_may_use(node: Node) -> None:
    with node.running():
        exclusive, start = node.log()[:2]
        assert exclusive == "EXCLUSIVE_PROCESS"
        assert start == f"start -f -multiuser-server PCI_BUS_ID {node.mps}/log"
        assert (node.mps / "log").stat().st_mode & 0o777 == 0o700
        assert (node.mps.parent / "shm").stat().st_mode & 0o7777 == 0o1777
        assert mps.socket_path(node.mps).stat().st_mode & 0o777 == 0o600
        pid = node.pid()
    assert node.log()[-1] == "quit"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (node.state / "mode").read_text(encoding="ascii") == "Exclusive_Process\n"
    assert not mps.socket_path(node.mps).exists()


def test_a_daemon_that_ends_is_started_again_with_the_same_limits_and_one_that_does_not_is_killed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deviceplugin.mps._END_S", 0.1)
    (node.state / "deaf").touch()
    with node.running():
        node.backend.prepare(start_of(0), INVENTORY.gpus[:1])
        first = node.pid()
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: (node.problems() == [PROVEN, PROVEN]) and node.pid() != first)
        assert node.log().count("set_default_device_pinned_mem_limit 0 3072M") == 2
        second = node.pid()
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


def test_a_start_points_the_container_at_the_daemon(node: Node) -> None:
    with node.running():
        (node.state / "servers").write_text("4711\n", encoding="ascii")
        start = start_of(grant=make_grant(0, 1, gib=3, compute_percent=20))
        edits = node.backend.prepare(start, start.gpus)
    pipe = f"{node.mps}/pipe"
    assert dict(edits.env) == {
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-0=3072M,GPU-1=3072M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1900",
    }
    options = ("rw", "nosuid", "nodev", "bind")
    assert edits.mounts == (
        Mount(host_path=pipe, container_path=pipe, options=options),
        Mount(host_path="/dev/shm/gpushare-mps", container_path="/dev/shm", options=options),
    )
    assert [line for line in node.log() if line.startswith("set_")] == [
        "set_default_device_pinned_mem_limit 0 3072M",
        "set_device_pinned_mem_limit 4711 0 3072M",
        "set_default_device_pinned_mem_limit 1 3072M",
        "set_device_pinned_mem_limit 4711 1 3072M",
    ]


def test_the_daemons_own_limit_is_the_largest_grant_of_the_gpu(node: Node) -> None:
    none = {"devices.gpushare.dev/main": None, "memory.gpushare.dev/main": None}
    node.pods = [
        bound_pod(make_grant(0, gib=5), name="large"),
        bound_pod(make_grant(0, gib=9), name="ended", phase="Succeeded"),
        bound_pod(make_grant(0, gib=9), name="unreadable", annotations={"gpushare.dev/allocation": "{", **none}),
        bound_pod(make_grant(0, gib=6), name="partly", annotations={"gpushare.dev/allocation": "{"}),
        bound_pod(make_grant("GPU-gone", gib=9), name="gone"),
    ]
    with node.running():
        node.backend.prepare(start_of(0), INVENTORY.gpus[:1])
        node.backend.prepare(start_of(0), INVENTORY.gpus[:1])
    assert [line for line in node.log() if line.startswith("set_")] == ["set_default_device_pinned_mem_limit 0 6144M"]


def test_many_starts_at_once_do_not_wait_for_the_driver_one_after_another(node: Node) -> None:
    clock = ManualClock()
    supervisor = Supervisor(control=node.supervisor.control, clock=clock)
    with node.running():
        before = node.queries()
        for _ in range(80):
            assert supervisor.status({}).modes[0] == "Exclusive_Process"
        assert node.queries() == before + 1
        clock.at += 1.0
        (node.state / "mode").write_text("Default\n", encoding="ascii")
        assert supervisor.status({}).modes[0] == "Default"


def test_without_the_supervisor_nothing_starts(node: Node) -> None:
    assert "the supervisor of the MPS daemon does not answer" in node.problems()[0]
    with pytest.raises(LimitError, match="is the DaemonSet gpushare-mps running on this node"):
        node.backend.prepare(start_of(0), INVENTORY.gpus[:1])


def test_a_gpu_that_programs_can_use_without_mps_is_not_limited_by_it(node: Node) -> None:
    with node.running():
        (node.state / "mode").write_text("Default\n", encoding="ascii")
        wait_until(lambda: PROVEN not in node.problems())
        assert node.problems()[0] == (
            "its compute mode is Default, so that a program which does not reach MPS would have no limit; the DaemonSet"
            " gpushare-mps sets Exclusive_Process when it starts"
        )
        with pytest.raises(LimitError, match="its compute mode is Default"):
            node.backend.prepare(start_of(0), INVENTORY.gpus[:1])


def test_a_peer_that_sends_something_else_gets_no_answer(node: Node) -> None:
    with node.running(), socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(mps.socket_path(node.mps)))
        peer.sendall(b"quit\n")
        assert mps.read_line(peer) == b""


def test_a_line_without_an_end_is_read_up_to_a_bound() -> None:
    class Endless(socket.socket):
        def recv(self, size: int, flags: int = 0) -> bytes:
            return b"x" * size

    with Endless() as connection:
        assert len(mps.read_line(connection)) == 64 * 1024


def test_broken_messages_are_refused() -> None:
    for bad in (b"", b"[]", b"{}", b'{"defaults": 3}', b'{"defaults": {"x": 1}}'):
        with pytest.raises(WireError):
            mps.decode_request(bad)
        with pytest.raises(WireError):
            mps.decode_status(bad)


def test_programs_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = MpsControl(tmp_path)
    assert control.shared_memory == Path("/dev/shm")  # where CUDA looks for it
    with pytest.raises(MpsError, match="nvidia-cuda-mps-control get_default_active_thread_percentage"):
        control.probe()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MpsError, match="nvidia-smi"):
        control.modes()
    with pytest.raises(MpsError, match="nvidia-cuda-mps-control cannot be started"):
        control.start()
