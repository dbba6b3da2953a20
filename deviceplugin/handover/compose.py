"""How GPUs are handed over on this node, as the settings say."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deviceplugin.handover.chooser import Chooser
from deviceplugin.handover.devices import DeviceHandOver
from deviceplugin.handover.spec_files import SpecFiles
from deviceplugin.handover.spec_reader import SpecReader
from deviceplugin.handover.sweep import Pods, SpecSweeper
from deviceplugin.inventory_feed import InventoryFeed
from deviceplugin.settings import NVML, Settings
from gpushare.identity import NodeName
from gpushare.kube.api import KubeApi
from gpushare.runtime.clock import Clock

_READ: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where container runtimes look unless they are configured otherwise."""


@dataclass(frozen=True, slots=True)
class HandOverParts:
    """What the rest of the plugin needs."""

    chooser: Chooser
    devices: DeviceHandOver
    sweeper: SpecSweeper


def hand_over(settings: Settings, api: KubeApi, clock: Clock, feed: InventoryFeed, pods: Pods) -> HandOverParts:
    """The way is chosen again and again; the devices follow the choice."""
    files = SpecFiles(settings.cdi_dir)
    reader = SpecReader(directories=tuple(dict.fromkeys((*_READ, settings.cdi_dir))), own=settings.cdi_dir)
    chooser = Chooser(
        api=api,
        node=NodeName(settings.node_name),
        clock=clock,
        files=files,
        setting=settings.hand_over,
        nvidia_default=settings.nvidia_default_runtime,
        simulated=settings.gpu_source != NVML,
        has_nvidia_specs=lambda: any(spec.is_nvidia for spec in reader.specs()),
        recheck_s=settings.publish_interval,
    )
    devices = DeviceHandOver(
        choice=chooser.latest,
        gpus=lambda: feed.latest.raw if feed.latest else {},
        files=files,
        specs=reader.specs,
    )
    return HandOverParts(chooser, devices, SpecSweeper(devices=devices, files=files, pods=pods, clock=clock))
