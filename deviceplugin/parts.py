"""The composition of a running plugin, apart from `__main__` because a check needs none of it."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from deviceplugin import identify, resources
from deviceplugin.counts import Counts
from deviceplugin.handover import compose as handover
from deviceplugin.handover.devices import DeviceHandOver
from deviceplugin.health import HealthLoop
from deviceplugin.inventory_feed import InventoryFeed
from deviceplugin.late import LateStarts
from deviceplugin.limits import compose as limiting
from deviceplugin.limits.node import NodeLimits
from deviceplugin.limits.starts import LimitStarts
from deviceplugin.nvml.binding import works_in_new_process
from deviceplugin.oversubscription import Oversubscription
from deviceplugin.podresources import PodResources
from deviceplugin.pods import PATH, PodCache, selector
from deviceplugin.prestart import StartCheck
from deviceplugin.probe import Probe
from deviceplugin.publish import Publisher
from deviceplugin.refusals import Refusals
from deviceplugin.registrar import Registrar
from deviceplugin.renewal import Renewal
from deviceplugin.settings import NVML, TOTAL, Settings
from deviceplugin.source import GpuSource
from deviceplugin.usage import compose as using
from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube.api import KubeApi
from gpushare.kube.watch import Reflector
from gpushare.runtime.clock import Clock
from gpushare.runtime.process import Part
from gpushare.units import ResourceConfig


def of(settings: Settings, api: KubeApi, clock: Clock, *, publish_until: float) -> Mapping[str, Part]:
    """What a plugin does at the same time, by name.

    The first registration waits for the inventory to be on the Node, at most up to the moment `publish_until`.
    """
    node, feed, cache = NodeName(settings.node_name), InventoryFeed(), PodCache(clock)
    offered = resources.offered(percent=settings.gpu_percent, whole_gpus=settings.whole_gpus)
    reflector = Reflector(api=api, path=PATH, sink=cache, clock=clock, params=selector(node))
    hand_over = handover.hand_over(
        settings, api, clock, feed, lambda: cache.all() if reflector.synced.is_set() else None
    )
    limits = limiting.limits(settings, clock, feed, pods=cache.all, label=hand_over.chooser.limits_label)
    start_check = _start_check(settings, api, clock, feed, cache, limits.node, hand_over.devices)
    counts = Counts()
    usage = using.usage(settings, clock, start_check, counts)
    oversubscription = Oversubscription(
        setting=settings.oversubscription, label=hand_over.chooser.oversubscription_label
    )
    renewal = Renewal(clock=clock, works=works_in_new_process)
    readings = HealthLoop(
        source=source(settings, node, clock),
        feed=feed,
        clock=clock,
        node=node,
        unit=settings.memory_unit,
        offered=offered,
        poll_s=settings.poll_interval,
        renewal=renewal,
        choice=hand_over.chooser.settled,
        assess=lambda inventory: usage.shown(limits.node.assess(oversubscription.assess(inventory))),
    )
    publisher = Publisher(
        api=api,
        feed=feed,
        clock=clock,
        node=node,
        recheck_s=settings.publish_interval,
        final=lambda inventory: hand_over.chooser.agrees(inventory) and oversubscription.agrees(inventory),
    )
    probe = Probe(
        port=settings.probe_port,
        clock=clock,
        parts=[resource.name for resource in offered],
        usable=lambda: not renewal.outdated,
    )
    parts = {
        "health": readings.run,
        "publish": publisher.run,
        "pods": abandoned(reflector.run),
        "probe": probe.run,
        "hand-over": hand_over.chooser.run,
        "specs": hand_over.sweeper.run,
        **limits.parts,
        **usage.parts,
    }
    for resource in offered:
        registrar = Registrar(
            resource=resource,
            directory=settings.device_plugins_dir,
            feed=feed,
            start_check=counts.counting(start_check.check),
            clock=clock,
            answer=hand_over.devices.answer,
            ready=publisher.published.is_set,  # so the Node was read, too
            ready_by=publish_until,
            on_beat=partial(probe.beat, resource.name),
        )
        if resource is resources.MEMORY:  # one look at the Node for all of them
            registrar.on_registered = publisher.recheck
        parts[f"kubelet {resource.name}"] = registrar.run
    return parts


def _start_check(
    settings: Settings,
    api: KubeApi,
    clock: Clock,
    feed: InventoryFeed,
    cache: PodCache,
    limits: NodeLimits,
    hand_over: DeviceHandOver,
) -> StartCheck:
    return StartCheck(
        node=NodeName(settings.node_name),
        resource_config=ResourceConfig(unit=settings.memory_unit, whole_gpus=settings.whole_gpus),
        feed=feed,
        cache=cache,
        api=api,
        lister=PodResources(socket=settings.pod_resources_socket, clock=clock),
        checkpoint=settings.device_plugins_dir / identify.CHECKPOINT,
        refusals=Refusals(api=api, clock=clock),
        late=LateStarts(cache=cache, clock=clock),
        limit=LimitStarts(limits),
        hand_over=hand_over,
    )


def source(settings: Settings, node: NodeName, clock: Clock) -> GpuSource:
    """The GPUs that the settings name."""
    if settings.gpu_source == NVML:
        # Late: the binding is large, and simulated GPUs need none.
        from deviceplugin.nvml import binding
        from deviceplugin.nvml.devices import MemoryRule
        from deviceplugin.nvml.source import NvmlSource

        return NvmlSource(
            nvml=binding.library(),
            clock=clock,
            memory=MemoryRule(reserved=settings.gpu_memory == TOTAL, unified_mib=settings.unified_memory),
            ignored_xids=settings.ignored_xids,
            recovery_s=settings.xid_recovery,
            recovery_action=settings.recovery_action,
        )
    # Late: only a demonstration needs it.
    from deviceplugin import simulated

    return simulated.SimulatedSource(
        path=Path(settings.gpu_source.removeprefix(names.SIMULATED)),
        node=node,
        clock=clock,
        reserved=settings.gpu_memory == TOTAL,
    )


def abandoned(run: Callable[[threading.Event], None]) -> Callable[[threading.Event], None]:
    """A part that cannot be woken, because it waits for the network, and need not be: it ends with the process."""

    def part(stop: threading.Event) -> None:
        thread = threading.Thread(target=run, args=(stop,), name="watch", daemon=True)
        thread.start()
        while not stop.wait(1.0):
            if not thread.is_alive():
                raise RuntimeError("the watch of pods ended by itself")

    return part
