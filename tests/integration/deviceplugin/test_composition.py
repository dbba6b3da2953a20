"""All parts together in one process, as `main` wires them."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin import main as program
from deviceplugin import ports
from gpushare.kube import client
from gpushare.kube.api import ServerFaultError
from gpushare.wire import inventory as wire
from testing.builders import make_grant, make_node
from testing.deviceplugin.build import bound_pod
from testing.fakes.kube import FakeKube
from testing.fakes.kubelet import FakeKubelet, FakePodResources, free_port, wait_until

PROFILES = Path(__file__).parents[3] / "testing" / "profiles"


def run_main(
    api: FakeKube, kubelet: FakeKubelet, resources: FakePodResources, act: Callable[[], None], *flags: str
) -> None:
    """Do something while `main` holds the main thread, then end it with SIGTERM."""
    problems: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - reported by the test
            problems.append(error)
        api.close()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=run).start()
    sockets = (f"--device-plugins-dir={kubelet.directory}", f"--pod-resources-socket={resources.socket}")
    assert (program.main(["--node-name=node-a", *sockets, *flags]), problems) == (0, [])


def test_a_pod_starts_on_a_node_that_has_just_come_up(
    kubelet: FakeKubelet,
    pod_resources: FakePodResources,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    api, port = FakeKube(), free_port()
    api.seed("/api/v1/nodes/node-a", make_node(name="node-a"))
    api.fail_next(lambda call: call.verb == "patch", ServerFaultError("slow"))  # the kubelet waits for the inventory
    monkeypatch.setattr(program, "_PUBLISH_FIRST_S", 250.0)
    monkeypatch.setattr(client, "connect", lambda _kubeconfig: api)

    def act() -> None:
        plugin = kubelet.wait_for_devices()
        inventory = wire.of_node(api.read("/api/v1/nodes/node-a"))
        assert inventory is not None
        assert [gpu.memory_mib for gpu in inventory.gpus] == [15360] * 4
        pod = bound_pod(make_grant(inventory.gpus[2].uuid), name="a")
        api.seed("/api/v1/namespaces/default/pods/a", pod)
        ids = tuple(plugin.lists[0])[:3]
        pod_resources.hold("a", *ids)
        assert plugin.start(*ids) == ""
        assert plugin.start(*ids[:2]).startswith("FAILED_PRECONDITION: neither PodResources")
        wait_until(lambda: ports.problem(port) == "")

    profile = f"--gpu-source=simulated:{PROFILES / 't4x4.yaml'}"
    run_main(api, kubelet, pod_resources, act, profile, f"--probe-port={port}")
    assert "Connection refused" in ports.problem(port)
    assert "Traceback" not in capsys.readouterr().err


def test_a_watch_that_waits_for_the_network_holds_no_one_up_and_one_that_ends_by_itself_ends_the_process() -> None:
    with pytest.raises(RuntimeError, match=r"^the watch of pods ended by itself$"):
        program.abandoned(lambda _stop: None)(threading.Event())
    stop, release, ended = threading.Event(), threading.Event(), threading.Event()

    def watch(_stop: threading.Event) -> None:
        release.wait(10.0)
        ended.set()

    part = program.abandoned(watch)
    stop.set()
    part(stop)
    assert not ended.is_set()
    release.set()
    assert ended.wait(60.0)
