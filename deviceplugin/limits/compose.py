"""What can hold limits on this node, as the settings say."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from deviceplugin.inventory_feed import InventoryFeed
from deviceplugin.limits import choose
from deviceplugin.limits.advisory import AdvisoryBackend
from deviceplugin.limits.backend import LimitBackend, Proofs
from deviceplugin.limits.cgroup import CgroupBackend
from deviceplugin.limits.early import EarlyLeaves
from deviceplugin.limits.hami_core import HamiCoreBackend
from deviceplugin.limits.leaves import LeafLimits
from deviceplugin.limits.mig import MigBackend
from deviceplugin.limits.mps import MpsBackend
from deviceplugin.limits.node import NodeLimits, OnFailure
from deviceplugin.settings import NVML, Settings
from gpushare.model.gpu import Gpu
from gpushare.runtime.clock import Clock
from gpushare.runtime.process import Part
from gpushare.wire.pods import Pod


@dataclass(frozen=True, slots=True)
class LimitParts:
    """What the rest of the plugin needs."""

    node: NodeLimits
    parts: Mapping[str, Part]
    """What runs beside it, by name."""


def limits(
    settings: Settings,
    clock: Clock,
    feed: InventoryFeed,
    *,
    pods: Callable[[], Sequence[Pod]],
    label: Callable[[], str | None],
) -> LimitParts:
    """All back ends that the settings allow.

    Args:
        settings: the plugin's.
        clock: for how often is looked.
        feed: the GPUs as they were read last.
        pods: those of this node.
        label: `gpushare.dev/limits` of the Node; may be empty, and None until the Node was read.
    """
    mps = MpsBackend(directory=settings.mps_dir, shared_memory=settings.mps_shared_memory, pods=pods)
    hami_core = HamiCoreBackend(directory=settings.hami_core_dir)
    backends: list[LimitBackend] = [MigBackend(), mps, hami_core, AdvisoryBackend()]
    parts: dict[str, Part] = {}
    unshared: Callable[[Sequence[Gpu]], Proofs] = _shared
    if settings.gpu_source == NVML:
        # Late: the binding is large, and simulated GPUs need none.
        from deviceplugin.nvml import binding
        from deviceplugin.nvml.compute_mode import ComputeModes
        from deviceplugin.nvml.memory_limits import MemoryLimits

        driver, modes = MemoryLimits(binding.library()), ComputeModes(binding.library())
        unshared = modes.unshared
        early = EarlyLeaves(driver=driver, clock=clock)
        cgroup = CgroupBackend(driver=driver, mount=settings.cgroup_mount, expect=early.expect)
        backends.append(cgroup)
        leaves = LeafLimits(
            backend=cgroup, pods=pods, inventory=lambda: feed.latest.inventory if feed.latest else None, clock=clock
        )
        parts |= {"limits": leaves.run, "early limits": early.run}
    node = NodeLimits(
        backends={backend.limit: backend for backend in backends},
        wanted=choose.order(settings.limits),
        on_failure=OnFailure(settings.limit_failure),
        clock=clock,
        label=label,
        unshared=unshared,
    )
    return LimitParts(node, parts)


def _shared(_gpus: Sequence[Gpu]) -> Proofs:
    """Simulated GPUs have no compute modes."""
    return {}
