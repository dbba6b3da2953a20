"""Composition root of the device plugin: its settings, and the parts that run beside each other."""

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from deviceplugin import identify, pods, ports, resources
from deviceplugin.cdi import ContainerEdits
from deviceplugin.cgroups import Procfs
from deviceplugin.dra import claims
from deviceplugin.dra.driver import ClaimDriver, held_by_claims
from deviceplugin.dra.modes import Modes
from deviceplugin.dra.server import DraServer
from deviceplugin.dra.slices import SlicePublisher
from deviceplugin.dra.store import ClaimStore
from deviceplugin.handover.choice import Chooser, Facts
from deviceplugin.handover.devices import DeviceHandOver, SpecSweeper
from deviceplugin.handover.spec_files import SpecFiles, SpecReader
from deviceplugin.identify import PodResources
from deviceplugin.inventory import HealthLoop, InventoryFeed, Oversubscription
from deviceplugin.limits import node as limits_of_node
from deviceplugin.limits.cgroup import CgroupBackend, ContainerLimits
from deviceplugin.limits.hami_core import HamiCoreBackend
from deviceplugin.limits.mps import MpsBackend
from deviceplugin.limits.node import AdvisoryBackend, LimitBackend, LimitedStart, MigBackend, NodeLimits
from deviceplugin.node import Publisher, Refusals
from deviceplugin.nvml import driver
from deviceplugin.nvml.driver import ComputeModes, MemoryLimits, NvmlProcesses, Sensors
from deviceplugin.nvml.source import NvmlSource
from deviceplugin.pods import HeldPod, PodCache
from deviceplugin.ports import Probe
from deviceplugin.prestart import LateStarts, StartCheck
from deviceplugin.server import Registrar
from deviceplugin.settings import NVML, TOTAL, Settings
from deviceplugin.simulated import SimulatedProcesses, SimulatedSource
from deviceplugin.source import GpuSource, Measured, ProcessLists
from deviceplugin.usage import join
from deviceplugin.usage.join import UsageReading, WatchdogPolicy
from deviceplugin.usage.loop import UsageLoop, Watchdog
from gpushare import names
from gpushare.errors import SettingsError
from gpushare.identity import NodeName
from gpushare.kube import client
from gpushare.kube.api import KubeApi
from gpushare.kube.watch import Reflector
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.runtime import logs, options, process
from gpushare.runtime.clock import Clock, SystemClock
from gpushare.runtime.pages import Response
from gpushare.runtime.process import Part
from gpushare.units import ResourceConfig

_LOG: Final = logging.getLogger(__name__)
_CHECK: Final = "--check"
_PUBLISH_FIRST_S: Final = 0.4  # for which the first registration, which should come in a second, waits for the Node
_SPECS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))  # where container runtimes look unless told otherwise
_HIDDEN: Final = (
    "the processes of the node cannot be seen: hostPID is missing; apply one of the components for usage again"
)
_POD_S: Final = 2.0  # for which a claim waits for its pod, of which the kubelet may know first
_MODE_S: Final = 15.0  # between looks at the Node, where its annotations decide on modes
_STALE: Final = 4  # readings of the process lists that may be missing in between, or at the end
Held = Callable[[NodeInventory], Sequence[HeldPod]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the plugin, or with --check ask for one: 0 after a signal or a good check, 1 if a part failed, else 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        flags = [argument for argument in arguments if argument != _CHECK]
        settings = options.load(Settings, flags, prog=names.PLUGIN)
        if _CHECK not in arguments:
            return _run(settings)
    except SettingsError as error:
        print(f"{names.PLUGIN}: {error}", file=sys.stderr)
        return 2
    if problem := ports.problem(settings.probe_port):
        print(problem, file=sys.stderr)
    return int(bool(problem))


def _run(settings: Settings) -> int:
    if not settings.node_name:
        raise SettingsError(
            "the node's name is missing: set --node-name or GPUSHARE_NODE_NAME; in a pod take it from spec.nodeName"
        )
    clock = SystemClock()
    publish_until = clock.monotonic() + _PUBLISH_FIRST_S
    logs.configure(level=settings.log_level)
    return process.run(_parts(settings, client.connect(settings.kubeconfig), clock, publish_until=publish_until))


def _parts(settings: Settings, api: KubeApi, clock: Clock, *, publish_until: float) -> Mapping[str, Part]:
    """By name. Until `publish_until`, registering waits for the Node."""
    node, feed, cache = NodeName(settings.node_name), InventoryFeed(), PodCache(clock)
    resource_config = ResourceConfig(unit=settings.memory_unit, whole_gpus=settings.whole_gpus)
    offered = resources.offered(percent=settings.gpu_percent, whole_gpus=settings.whole_gpus)
    params = {"fieldSelector": f"spec.nodeName={node}"}
    reflector = Reflector(api=api, path=pods.PATH, sink=cache, clock=clock, params=params)

    def held(latest: NodeInventory) -> Sequence[HeldPod]:
        """Whole GPUs too that were granted while they were offered."""
        return tuple(pods.held(cache.all(), latest, replace(resource_config, whole_gpus=True)))

    parts: dict[str, Part] = {"pods": abandoned(reflector.run)}
    chooser, hand_over = _hand_over(settings, api, clock, feed)
    store = ClaimStore(
        node=node, api=api, checkpoint=settings.kubelet_dir / "plugins" / names.DRA_DRIVER / "checkpoint.json"
    )

    def held_in_all(latest: NodeInventory) -> Sequence[HeldPod]:
        return (*held(latest), *held_by_claims(store.prepared or {}, latest))

    def held_by_pods(latest: NodeInventory) -> Sequence[HeldPod]:
        return (*held(latest), *claims.held_by_pods(cache.all(), (store.prepared or {}).values(), latest))

    limits = _limits(settings, clock, feed, held_by_pods, held_in_all, chooser, parts)
    modes, claimer, of_claims = _claims(settings, cache, feed, chooser, hand_over, limits.prepare, store)
    parts |= of_claims
    modes.pods = lambda latest: (
        {gpu for pod in held(latest) for grant in pod.allocation.grants for gpu in grant.gpus}
        if reflector.synced.is_set()
        else None
    )
    sweeper = SpecSweeper(
        devices=hand_over,
        pods=lambda: cache.all() if reflector.synced.is_set() else None,
        clock=clock,
        claims=lambda: store.prepared if settings.dra else (),
    )
    parts |= {"hand-over": chooser.run, "specs": sweeper.run}
    refusals = Refusals(api=api, clock=clock)
    start_check = StartCheck(
        node=node,
        resource_config=resource_config,
        feed=feed,
        cache=cache,
        api=api,
        lister=PodResources(socket=settings.pod_resources_socket, clock=clock).list,
        checkpoint=settings.device_plugins_dir / identify.CHECKPOINT,
        refusals=refusals,
        late=LateStarts(cache=cache, clock=clock),
        limit=limits.prepare,
        hand_over=hand_over,
    )
    source, lists, sensors = _gpus(settings, clock)
    watchdog = Watchdog(
        policy=settings.watchdog,
        grace_s=settings.watchdog_grace,
        gap_s=_STALE * settings.usage_interval,
        tolerance_mib=settings.watchdog_tolerance_mib,
        api=api,
        table=Procfs(),
        events=refusals,
        clock=clock,
    )
    usage = UsageLoop(
        lists=lists,
        table=watchdog.table,
        feed=feed,
        holding=lambda latest: join.holding(held_by_pods(latest), latest),
        watchdog=watchdog if settings.watchdog is not WatchdogPolicy.OFF else None,
        clock=clock,
        interval_s=settings.usage_interval,
        stale_s=_STALE * settings.usage_interval,
        reading=UsageReading.of(wanted=settings.usage or settings.watchdog is not WatchdogPolicy.OFF, pid=os.getpid()),
    )
    if usage.reading is UsageReading.HIDDEN:
        logs.event(_LOG, "usage not read", level=logging.ERROR, problem=_HIDDEN)
    if usage.reading is UsageReading.ON:
        parts["usage"] = usage.run

    def page() -> Response:
        # Late: the library would cost the plugin its first second.
        from deviceplugin import metrics

        now = usage.view()
        measured = replace(now, measured=sensors(now.gpus)) if now else None
        claimed = (claimer.claimed(), claimer.outcomes) if claimer else ()
        text = metrics.page(measured, start_check.starts(), watchdog.actions, node, *claimed)
        return Response(200, text, metrics.CONTENT_TYPE)

    if settings.metrics_port:
        parts["metrics"] = partial(ports.serve_metrics, port=settings.metrics_port, make=page, clock=clock)
    policy = settings.watchdog if usage.reading is UsageReading.ON else WatchdogPolicy.OFF
    oversubscription = Oversubscription(setting=settings.oversubscription, label=chooser.oversubscription_label)
    readings = HealthLoop(
        source=source,
        feed=feed,
        clock=clock,
        node=node,
        unit=settings.memory_unit,
        offered=offered,
        poll_s=settings.poll_interval,
        new_process_works=driver.works_in_new_process,
        stages=[  # limits are proven for the hand-over, and the watchdog replaces only what is weaker
            chooser.assess,
            oversubscription.assess,
            limits.assess,
            lambda latest: join.with_watchdog(latest, policy, usage.unseen()),
            modes.assess,
        ],
    )
    publisher = Publisher(
        api=api,
        feed=feed,
        clock=clock,
        node=node,
        recheck_s=settings.publish_interval,
        final=lambda latest: chooser.agrees(latest) and oversubscription.agrees(latest),
    )
    modes.told.append(lambda: publisher.done)
    probe = Probe(
        port=settings.probe_port,
        clock=clock,
        parts=[resource.name for resource in offered],
        usable=lambda: not readings.library_outdated,
    )
    parts |= {"health": readings.run, "publish": publisher.run, "probe": probe.run}
    for resource in offered:
        registrar = Registrar(
            resource=resource,
            directory=settings.device_plugins_dir,
            feed=feed,
            start_check=start_check.check,
            clock=clock,
            answer=hand_over.answer,
            ready=publisher.published.is_set,  # so the Node was read, too
            ready_by=publish_until,
            on_beat=partial(probe.beat, resource.name),
        )
        if resource is resources.MEMORY:  # one look at the Node for all of them
            registrar.on_registered = publisher.recheck
        parts[f"kubelet {resource.name}"] = registrar.run
    return parts


def _claims(
    settings: Settings,
    cache: PodCache,
    feed: InventoryFeed,
    chooser: Chooser,
    hand_over: DeviceHandOver,
    limit: Callable[[LimitedStart], ContainerEdits],
    store: ClaimStore,
) -> tuple[Modes, ClaimDriver | None, Mapping[str, Part]]:
    """What decides on modes; and what prepares claims, if that is on."""
    clock = chooser.clock
    if not settings.dra:
        return Modes(node=chooser.node_facts, clock=clock), None, {}
    driver = ClaimDriver(
        node=store.node,
        api=store.api,
        clock=clock,
        feed=feed,
        hand_over=hand_over,
        limit=limit,
        store=store,
        find_pod=lambda uid: cache.wait_for(partial(cache.by_uid, uid), _POD_S),
    )
    slices = SlicePublisher(
        api=store.api,
        clock=clock,
        node=store.node,
        feed=feed,
        facts=chooser.node_facts,
        prepared=lambda: store.prepared,
    )
    driver.on_change = slices.wake
    modes = Modes(
        node=chooser.node_facts,
        clock=clock,
        claims=driver.holders,
        prepared=driver.gpus,
        problem=lambda: slices.problem,
        version=lambda: feed.latest.version if feed.latest else 0,
        told=[lambda: slices.done],
        enabled=True,
    )
    driver.is_known = lambda: modes.known
    server = DraServer(
        kubelet=settings.kubelet_dir, node=store.node, driver=driver, feed=feed, clock=clock, on_registered=slices.wake
    )
    return modes, driver, {"claims": driver.run, "slices": slices.run, "kubelet claims": server.run}


def _hand_over(settings: Settings, api: KubeApi, clock: Clock, feed: InventoryFeed) -> tuple[Chooser, DeviceHandOver]:
    files = SpecFiles(settings.cdi_dir)
    reader = SpecReader(directories=tuple(dict.fromkeys((*_SPECS, settings.cdi_dir))), own=settings.cdi_dir)
    chooser = Chooser(
        api=api,
        node=NodeName(settings.node_name),
        clock=clock,
        files=files,
        settings=Facts(
            setting=settings.hand_over,
            nvidia_default=settings.nvidia_default_runtime,
            directory=str(files.directory),
            simulated=settings.gpu_source != NVML,
        ),
        has_nvidia_specs=lambda: any(spec.is_nvidia for spec in reader.specs()),
        recheck_s=min(settings.publish_interval, _MODE_S) if settings.dra else settings.publish_interval,
    )
    devices = DeviceHandOver(
        choice=chooser.latest, gpus=lambda: feed.latest.raw if feed.latest else {}, files=files, specs=reader.specs
    )
    return chooser, devices


def _limits(
    settings: Settings,
    clock: Clock,
    feed: InventoryFeed,
    held: Held,
    held_in_all: Held,
    chooser: Chooser,
    parts: dict[str, Part],
) -> NodeLimits:
    """Args: held: what pods have, also by claims; held_in_all: what was granted, and what each claim has."""
    backends: list[LimitBackend] = [
        MigBackend(),
        MpsBackend(directory=settings.mps_dir, shared_memory=settings.mps_shared_memory, held=held_in_all),
        HamiCoreBackend(directory=settings.hami_core_dir),
        AdvisoryBackend(),
    ]
    of_nvml: dict[str, Any] = {}
    if settings.gpu_source == NVML:
        of_nvml["exclusive"] = ComputeModes(driver.library()).exclusive
        cgroup = CgroupBackend(driver=MemoryLimits(driver.library()), mount=settings.cgroup_mount)
        backends.append(cgroup)
        parts["limits"] = ContainerLimits(
            backend=cgroup, held=held, inventory=lambda: feed.latest.inventory if feed.latest else None, clock=clock
        ).run
    return NodeLimits(
        backends={backend.limit: backend for backend in backends},
        wanted=limits_of_node.order(settings.limits),
        on_failure=settings.limit_failure,
        clock=clock,
        label=chooser.limits_label,
        **of_nvml,
    )


def _gpus(settings: Settings, clock: Clock) -> tuple[GpuSource, ProcessLists, Callable[[Sequence[Gpu]], Measured]]:
    reserved = settings.gpu_memory == TOTAL
    if settings.gpu_source != NVML:
        path = Path(settings.gpu_source.removeprefix(names.SIMULATED))
        processes = Path(settings.simulated_processes) if settings.simulated_processes else None
        simulated = SimulatedSource(path=path, node=NodeName(settings.node_name), clock=clock, reserved=reserved)
        return simulated, SimulatedProcesses(processes), lambda _gpus: {}
    nvml = driver.library()
    source = NvmlSource(
        nvml=nvml,
        clock=clock,
        reserved=reserved,
        unified_mib=settings.unified_memory,
        ignored_xids=settings.ignored_xids,
        recovery_s=settings.xid_recovery,
        recovery_action=settings.recovery_action,
    )
    return source, NvmlProcesses(nvml), Sensors(nvml).read


def abandoned(run: Part) -> Part:
    """A part that cannot be woken, because it waits for the network, and need not be: it ends with the process."""

    def part(stop: threading.Event) -> None:
        thread = threading.Thread(target=run, args=(stop,), name="watch", daemon=True)
        thread.start()
        while not stop.wait(1.0):
            if not thread.is_alive():
                raise RuntimeError("the watch of pods ended by itself")

    return part
