"""How the use of GPUs is read, shown and judged, as the settings say."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deviceplugin.counts import Counts
from deviceplugin.metrics_server import MetricsServer
from deviceplugin.prestart import StartCheck
from deviceplugin.settings import NVML, Settings
from deviceplugin.usage import overuse
from deviceplugin.usage.current import CurrentUsage
from deviceplugin.usage.loop import ProcessLists, UsageLoop
from deviceplugin.usage.namespaces import Namespaces
from deviceplugin.usage.procfs import Procfs
from deviceplugin.usage.simulated import SimulatedProcesses
from deviceplugin.usage.values import Policy, Reading
from deviceplugin.usage.watchdog import Watchdog
from gpushare.model.gpu import NodeInventory
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.runtime.process import Part

_LOG: Final = logging.getLogger(__name__)
_HIDDEN: Final = (
    "the processes of the node cannot be seen: hostPID is missing; apply one of the components for usage again"
)
_STALE: Final = 4
"""Readings of the process lists that may be missing in between, or at the end."""


@dataclass(frozen=True, slots=True)
class UsageParts:
    """What the rest of the plugin needs."""

    shown: Callable[[NodeInventory], NodeInventory]
    """An inventory with the watchdog as a limit, where it sees what it watches."""
    parts: Mapping[str, Part]
    """What shows and reads the use of GPUs, by name."""


def usage(settings: Settings, clock: Clock, start_check: StartCheck, counts: Counts) -> UsageParts:
    """How use is read. Args: start_check: whose GPUs and pods are looked at."""
    current = CurrentUsage(
        feed=start_check.feed,
        cache=start_check.cache,
        resource_config=start_check.resource_config,
        clock=clock,
        stale_s=_STALE * settings.usage_interval,
        reading=_reading(settings),
    )
    found: dict[str, Part] = {}
    if settings.metrics_port:
        server = MetricsServer(
            port=settings.metrics_port, node=settings.node_name, usage=current.view, counts=counts, clock=clock
        )
        found["metrics"] = server.run
    if current.reading is Reading.HIDDEN:
        logs.event(_LOG, "usage not read", level=logging.ERROR, problem=_HIDDEN)
    if current.reading is Reading.ON:
        found["usage"] = _loop(settings, current, start_check, counts).run
    policy = settings.watchdog if current.reading is Reading.ON else Policy.OFF
    return UsageParts(lambda inventory: overuse.shown(inventory, policy, current.unseen()), found)


def _reading(settings: Settings) -> Reading:
    return Reading.of(wanted=settings.usage or settings.watchdog is not Policy.OFF, pid=os.getpid())


def _loop(settings: Settings, current: CurrentUsage, start_check: StartCheck, counts: Counts) -> UsageLoop:
    table, clock = Procfs(), current.clock
    watchdog = Watchdog(
        policy=settings.watchdog,
        grace_s=settings.watchdog_grace,
        gap_s=_STALE * settings.usage_interval,
        tolerance_mib=settings.watchdog_tolerance_mib,
        api=start_check.api,
        table=table,
        events=start_check.refusals,
        namespaces=Namespaces(api=start_check.api, clock=clock),
        counts=counts,
        clock=clock,
    )
    return UsageLoop(
        lists=_process_lists(settings),
        table=table,
        feed=current.feed,
        cache=current.cache,
        resource_config=current.resource_config,
        clock=clock,
        current=current,
        watchdog=watchdog if settings.watchdog is not Policy.OFF else None,
        interval_s=settings.usage_interval,
    )


def _process_lists(settings: Settings) -> ProcessLists:
    if settings.gpu_source != NVML:
        return SimulatedProcesses(Path(settings.simulated_processes) if settings.simulated_processes else None)
    # Late: the binding is large, and simulated GPUs need none.
    from deviceplugin.nvml import binding, processes

    return processes.NvmlProcesses(binding.library())
