"""A thousand histories of process lists: what is shown is so, and the watchdog touches no innocent pod."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin import metrics
from deviceplugin.counts import Counts
from deviceplugin.nvml.processes import NvmlProcesses
from deviceplugin.refusals import Refusals
from deviceplugin.usage.current import CurrentUsage
from deviceplugin.usage.loop import UsageLoop
from deviceplugin.usage.namespaces import Namespaces
from deviceplugin.usage.procfs import TICKS
from deviceplugin.usage.values import Lists, Policy
from deviceplugin.usage.watchdog import Watchdog
from gpushare.identity import GpuUuid, PodUid
from gpushare.resource_config import ResourceConfig
from gpushare_cli import usage
from gpushare_cli.usage import Use
from tests.nvml import stub
from tests.nvml.stub import Stub
from tests.property.usage_world import GPUS, MIB, Moment, Real, World

GRACE_S, GAP_S, STEPS = 12.0, 20.0, 12
HISTORIES, AT_ONCE = 1000, 50


class WorldLists:
    """See ProcessLists."""

    def __init__(self, world: World) -> None:
        self.read = world.read_lists


class StubLists:
    """The same lists, told by the stub of NVIDIA's library and read through the real binding."""

    def __init__(self, world: World, nvml: Any, stub: Stub) -> None:
        self.world, self.stub, self.nvml = world, stub, NvmlProcesses(nvml)

    def read(self, gpus: Collection[GpuUuid]) -> Lists:
        keys: dict[str, object] = {}
        for number, (gpu, listed) in enumerate(self.world.read_lists(gpus).items()):
            assert self.stub.keys[f"{number}.uuid"] == gpu
            keys[f"{number}.fail.all"] = stub.GPU_IS_LOST if listed is None else None
            lists: dict[str, list[str]] = {"compute": [], "graphics": [], "mps": []}
            for entry in listed or ():
                first, *more = self.world.random.sample(list(lists), self.world.random.randint(1, 3))
                used = -1 if entry.used is None else entry.used
                lists[first].append(f"{entry.pid} {used}")
                for other in more:  # a process may be in several lists, and not all of them tell of it
                    lists[other].append(f"{entry.pid} {self.world.random.choice((-1, used, used // 2))}")
            keys |= {f"{number}.{name}": " ".join(entries) or None for name, entries in lists.items()}
        self.stub.set(keys)
        return self.nvml.read(gpus)


def plugin(world: World, counts: Counts, policy: Policy) -> UsageLoop:
    config = ResourceConfig()
    current = CurrentUsage(feed=world.feed, cache=world.cache, resource_config=config, clock=world.clock, stale_s=1e9)
    watchdog = Watchdog(
        policy=policy,
        grace_s=GRACE_S,
        gap_s=GAP_S,
        tolerance_mib=0,
        api=world.api,
        table=world,
        events=Refusals(api=world.api, clock=world.clock),
        namespaces=Namespaces(api=world.api, clock=world.clock),
        counts=counts,
        clock=world.clock,
    )
    return UsageLoop(
        lists=WorldLists(world),
        table=world,
        feed=world.feed,
        cache=world.cache,
        resource_config=config,
        clock=world.clock,
        current=current,
        watchdog=watchdog,
        interval_s=5.0,
    )


# The oracle: it knows what really was, and nothing of how it was found out.


def above_since(world: World, over: Mapping[int, bool], gpu: GpuUuid) -> float:
    """For how long, up to the last sample, something was above its grant in every sample that the GPU answered."""
    last = first = world.moments[-1].at
    for number in range(len(world.moments) - 1, -1, -1):
        moment = world.moments[number]
        if gpu not in moment.answered:
            continue
        if not over[number] or last - moment.at > GAP_S:
            break
        first = last = moment.at
    return world.moments[-1].at - first


def guilty_containers(world: World, pod: PodUid, gpu: GpuUuid) -> set[str]:
    """Containers of a pod that were above their own grant for too long."""
    found = set()
    for owner, name in world.names.items():
        granted = world.grants.get((pod, name, gpu))
        if owner.pod == pod and granted is not None:
            over = {i: moment.used.get((owner, gpu), 0) > granted for i, moment in enumerate(world.moments)}
            if over[len(world.moments) - 1] and above_since(world, over, gpu) >= GRACE_S:
                found.add(owner.container)
    return found


def pod_is_guilty(world: World, pod: PodUid, gpu: GpuUuid) -> bool:
    """Whether all containers of a pod together were above what all of them may use."""
    granted = sum(mib for (each, _, where), mib in world.grants.items() if (each, where) == (pod, gpu))

    def used(moment: Moment) -> int:
        return sum(mib for (owner, where), mib in moment.used.items() if (owner.pod, where) == (pod, gpu))

    over = {i: used(moment) > granted for i, moment in enumerate(world.moments)}
    return over[len(world.moments) - 1] and above_since(world, over, gpu) >= GRACE_S


def is_guilty(world: World, pod: PodUid) -> bool:
    return any(guilty_containers(world, pod, gpu) or pod_is_guilty(world, pod, gpu) for gpu in GPUS)


def process_is_guilty(world: World, process: Real) -> bool:
    if process.owner is None:
        return False
    pod, container = process.owner.pod, process.owner.container
    return any(container in guilty_containers(world, pod, gpu) or pod_is_guilty(world, pod, gpu) for gpu in GPUS)


def played(
    seed: int, *, clean: bool, policies: Sequence[Policy] = (Policy.REPORT, Policy.EVICT, Policy.KILL)
) -> Iterator[tuple[World, UsageLoop, Counts]]:
    """One history, after each of its samples."""
    random = Random(seed)
    world, counts = World(random, clean, tuple(map(str, policies)), handles=random.random() < 0.8), Counts()
    loop = plugin(world, counts, random.choice(policies))
    for _ in range(STEPS):
        world.step()
        yield world, loop, counts


def touched(world: World, *, calls: int, ended: int) -> Iterator[PodUid | Real]:
    """What was acted upon since so many calls and signals."""
    for call in world.api.calls[calls:]:
        if call.path.endswith("/eviction"):
            assert call.body
            yield PodUid(call.body["deleteOptions"]["preconditions"]["uid"])
        elif call.path.endswith("/events"):
            assert call.body
            yield PodUid(call.body["involvedObject"]["uid"])
    yield from world.ended[ended:]


@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_no_innocent_pod_is_touched(first: int) -> None:
    acted = 0
    for seed in range(first, first + AT_ONCE):
        for world, loop, _counts in played(seed, clean=False):
            calls, ended = len(world.api.calls), len(world.ended)
            loop.look()
            for one in touched(world, calls=calls, ended=ended):
                acted += 1
                if isinstance(one, Real):
                    assert process_is_guilty(world, one), f"seed {seed}: {one}"
                else:
                    assert is_guilty(world, one), f"seed {seed}: {one}"
    assert acted  # else this proves nothing


def shown(loop: UsageLoop, counts: Counts) -> dict[str, dict[tuple[str, str, str], float]]:
    """The metrics of containers: kind, then pod, container and GPU."""
    page = metrics.page(loop.current.view, counts).decode()
    return {
        family.name: {
            (each.labels["pod"], each.labels["container"], each.labels["gpu"]): each.value for each in family.samples
        }
        for family in text_string_to_metric_families(page)
        if family.name.startswith("gpushare_plugin_container_")
    }


def in_lists(world: World, pod: PodUid, name: str, gpu: GpuUuid) -> int | None:
    """What the lists of the last sample say of a container, for the processes that were still there a moment later."""
    total, listed = 0, world.listed[gpu]
    if listed is None:
        return None
    at = world.moments[-1].at
    told = {container for reduced in world.cache.all() for container in told_names(reduced, pod)}
    for process, mib in listed:
        owner = process.owner
        if owner is None or owner.pod != pod or process not in world.read_ok or process.started >= int(at * TICKS):
            continue
        known = dict(told).get(owner.container, "")
        if (known if (pod, known, gpu) in world.grants else "") == name:
            if mib is None:
                return None
            total += mib
    return total * MIB


def told_names(reduced: object, pod: PodUid) -> Iterator[tuple[str, str]]:
    assert isinstance(reduced, dict)
    if reduced["metadata"]["uid"] == pod:
        for report in reduced["status"]["containerStatuses"]:
            if "containerID" in report:
                yield report["containerID"].rpartition("/")[2], report["name"]


@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_metrics_and_views_agree_with_the_lists(first: int, nvml_binding: Any, nvml_stub: Stub) -> None:
    for gpu in GPUS:
        nvml_stub.add_gpu(uuid=gpu)
    compared = 0
    for seed in range(first, first + AT_ONCE):
        peaks: dict[tuple[str, str, str], float] = {}
        for world, loop, counts in played(seed, clean=False, policies=(Policy.REPORT,)):  # a kill would move things
            replace(loop, lists=StubLists(world, nvml_binding, nvml_stub)).look()
            if len(world.moments) % 4:
                continue
            found = shown(loop, counts)
            used = found["gpushare_plugin_container_used_bytes"]
            seen = usage.parse(metrics.page(loop.current.view, counts).decode()).uses  # as the command line reads it
            held = {reduced["metadata"]["uid"]: reduced["metadata"]["name"] for reduced in world.cache.all()}
            for (pod, name, gpu), mib in world.grants.items():
                if pod in held:
                    key = held[pod], name, gpu
                    assert used.get(key) == in_lists(world, pod, name, gpu), f"seed {seed}: {key}"
                    mine = seen.get(("default", *key), Use())
                    assert mine.used_mib == (None if key not in used else used[key] / MIB)
                    assert found["gpushare_plugin_container_granted_bytes"][key] == mib * MIB
                    peaks[key] = max(peaks.get(key, 0), used.get(key, 0))
                    assert found["gpushare_plugin_container_peak_bytes"].get(key, 0) >= peaks[key]
                    compared += 1
    assert compared > AT_ONCE


@pytest.mark.parametrize("first", range(0, HISTORIES // 4, AT_ONCE))
def test_where_nothing_is_hidden_the_guilty_are_found(first: int) -> None:
    found = 0
    for seed in range(first, first + AT_ONCE):
        for world, loop, _counts in played(seed, clean=True):
            loop.look()
            guilty = sum(
                len(guilty_containers(world, pod, gpu)) for pod in {key[0] for key in world.grants} for gpu in GPUS
            )
            latest = loop.current.latest
            assert latest is not None
            assert (latest.over or 0) >= guilty, f"seed {seed}"
            found += guilty
    assert found
