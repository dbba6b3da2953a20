"""Composition root of the device plugin."""

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from deviceplugin import settings as settings_module
from deviceplugin import state
from deviceplugin.settings import NVML, PROG, SIMULATED, Settings
from deviceplugin.source import GpuSource
from gpushare.errors import SettingsError
from gpushare.identity import NodeName
from gpushare.runtime import group, logs
from gpushare.runtime.clock import Clock, SystemClock

_CHECK: Final = "--check"
_PUBLISH_FIRST_S: Final = 0.7
"""How long the first registration waits for the inventory to be on the Node: all in all it should come in a second."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the plugin, or with --check ask whether one runs.

    Returns:
        0 after a signal or a good check, 1 if a part failed, 2 if it was started wrongly.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        settings = settings_module.load([argument for argument in arguments if argument != _CHECK])
        if _CHECK in arguments:
            return _check(settings)
        settings_module.require_node(settings)
        return _run(settings)
    except SettingsError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2


def _check(settings: Settings) -> int:
    problem = state.problem(settings.state_file, SystemClock())
    if problem:
        print(problem, file=sys.stderr)
    return int(bool(problem))


def _run(settings: Settings) -> int:
    clock = SystemClock()
    publish_until = clock.monotonic() + _PUBLISH_FIRST_S
    logs.configure(level=settings.log_level)
    # Late: a check needs none of these, and it is made every few seconds.
    from deviceplugin import board, health, kubelet, podresources, pods, prestart, publish, refusals
    from gpushare.kube import client, watch

    node = NodeName(settings.node_name)
    api = client.connect(settings.kubeconfig)
    shown, cache = board.Board(), pods.PodCache()
    source = _source(settings, node, clock)
    unit, poll_s = settings.memory_unit, settings.poll_interval
    readings = health.HealthLoop(source=source, board=shown, clock=clock, node=node, unit=unit, poll_s=poll_s)
    publisher = publish.Publisher(api=api, board=shown, clock=clock, node=node, recheck_s=settings.publish_interval)
    gate = prestart.Gate(
        node=node,
        board=shown,
        cache=cache,
        api=api,
        lister=podresources.PodResources(socket=settings.pod_resources_socket, clock=clock),
        checkpoint=settings.device_plugins_dir / prestart.CHECKPOINT,
        refusals=refusals.Refusals(api=api, clock=clock),
    )
    link = kubelet.KubeletLink(
        directory=settings.device_plugins_dir,
        board=shown,
        gate=gate,
        clock=clock,
        ready=publisher.published.is_set,
        ready_by=publish_until,
        on_registered=publisher.recheck,
        on_beat=state.StateFile(path=settings.state_file, clock=clock).beat,
    )
    mirror = watch.Reflector(
        api=api, path=pods.PATH, sink=cache, clock=clock, params=pods.selector(node), keep=pods.reduce
    )
    parts = {"health": readings.run, "publish": publisher.run, "pods": _abandoned(mirror.run), "kubelet": link.run}
    return group.run(parts)


def _source(settings: Settings, node: NodeName, clock: Clock) -> GpuSource:
    if settings.gpu_source == NVML:
        # Late: the binding is large, and simulated GPUs need none.
        from deviceplugin import nvml

        return nvml.NvmlSource(nvml=nvml.library(), clock=clock)
    # Late: the plugin of real GPUs reads no YAML.
    from deviceplugin import simulated

    return simulated.SimulatedSource(path=Path(settings.gpu_source.removeprefix(SIMULATED)), node=node, clock=clock)


def _abandoned(run: Callable[[threading.Event], None]) -> Callable[[threading.Event], None]:
    """A part that cannot be woken, because it waits for the network, and need not be: it ends with the process."""

    def part(stop: threading.Event) -> None:
        thread = threading.Thread(target=run, args=(stop,), name="watch", daemon=True)
        thread.start()
        while not stop.wait(1.0):
            if not thread.is_alive():
                raise RuntimeError("the watch of pods ended by itself")

    return part


if __name__ == "__main__":
    sys.exit(main())
