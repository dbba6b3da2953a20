"""Histories of process lists: what is shown is so, and the watchdog touches no innocent pod."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random

import pytest
from hypothesis import settings
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin import metrics
from deviceplugin.refusals import Refusals
from deviceplugin.usage.loop import UsageLoop
from deviceplugin.usage.procfs import TICKS
from deviceplugin.usage.values import WatchdogPolicy
from deviceplugin.usage.watchdog import Namespaces, Watchdog
from gpushare import names
from gpushare.identity import GpuUuid, PodUid
from testing.deviceplugin.usage import current_usage
from tests.property.usage_world import GPUS, MIB, Moment, Real, World

GRACE_S, GAP_S, STEPS = 12.0, 20.0, 12
EXAMPLES, AT_ONCE = settings().max_examples, 50


class WorldLists:
    """See ProcessLists."""

    def __init__(self, world: World) -> None:
        self.read = world.read_lists


def plugin(world: World, policy: WatchdogPolicy) -> UsageLoop:
    current = current_usage(world.feed, world.cache, world.clock)
    watchdog = Watchdog(
        policy=policy,
        grace_s=GRACE_S,
        gap_s=GAP_S,
        tolerance_mib=0,
        api=world.api,
        table=world,
        events=Refusals(api=world.api, clock=world.clock),
        namespaces=Namespaces(api=world.api, clock=world.clock),
        clock=world.clock,
    )
    return UsageLoop(
        lists=WorldLists(world),
        table=world,
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
    seed: int,
    *,
    clean: bool,
    policies: Sequence[WatchdogPolicy] = (WatchdogPolicy.REPORT, WatchdogPolicy.EVICT, WatchdogPolicy.KILL),
    leaves_memory: bool = False,
) -> Iterator[tuple[World, UsageLoop]]:
    """One history, after each of its samples."""
    random = Random(seed)
    asked, handles = tuple(map(str, policies)), random.random() < 0.8
    world = World(random=random, clean=clean, asked=asked, handles=handles, leaves_memory=leaves_memory)
    loop = plugin(world, random.choice(policies))
    for _ in range(STEPS):
        world.step()
        yield world, loop


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


@pytest.mark.parametrize("first", range(0, 10 * EXAMPLES, AT_ONCE))
def test_no_innocent_pod_is_touched(first: int) -> None:
    acted = 0
    for seed in range(first, first + AT_ONCE):
        for world, loop in played(seed, clean=False, leaves_memory=seed % 2 == 0):
            calls, ended = len(world.api.calls), len(world.ended)
            loop.look()
            for one in touched(world, calls=calls, ended=ended):
                acted += 1
                if isinstance(one, Real):
                    assert process_is_guilty(world, one), f"seed {seed}: {one}"
                else:
                    assert is_guilty(world, one), f"seed {seed}: {one}"
    assert acted  # else this proves nothing


Place = tuple[str, str, str]
"""Pod, container and GPU; empty where a metric has none."""


def shown(page: str) -> dict[str, dict[Place, float]]:
    """The metrics, by their names."""
    keys = ("pod", "container", "UUID")
    return {
        family.name: {
            (pod, "" if container == names.OTHERS else container, GpuUuid(gpu)): each.value
            for each in family.samples
            for pod, container, gpu in [[each.labels.get(key, "") for key in keys]]
        }
        for family in text_string_to_metric_families(page)
    }


def held_pods(world: World) -> dict[PodUid, str]:
    """Those of which the plugin knows."""
    return {reduced["metadata"]["uid"]: reduced["metadata"]["name"] for reduced in world.cache.all()}


def is_known(world: World, process: Real) -> bool:
    """Whether it was still there a moment after the lists, and before its PID was listed."""
    first = min(pids.get(process.pid, world.moments[-1].at) for pids in world.since.values())
    return process in world.read_ok and process.started < int(first * TICKS)


def in_lists(world: World, pod: PodUid, name: str, gpu: GpuUuid) -> int | None:
    """What the lists of the last sample say of a container; without a name, of those that hold nothing of the GPU."""
    total, listed = 0, world.listed[gpu]
    if listed is None:
        return None
    told = dict(container for reduced in world.cache.all() for container in told_names(reduced, pod))
    for process, mib in listed:
        owner = process.owner
        if owner is None or owner.pod != pod or not is_known(world, process):
            continue
        known = told.get(owner.container, "")
        if (known if (pod, known, gpu) in world.grants else "") == name:
            if mib is None:
                return None
            total += mib
    return total * MIB


def of_others(world: World, gpu: GpuUuid) -> int | None:
    """What the lists say of all other processes; None if the GPU was silent."""
    listed, pods = world.listed[gpu], held_pods(world)
    if listed is None:
        return None
    counted = (each for each, _ in listed if each.owner and each.owner.pod in pods and is_known(world, each))
    ours = set(counted)
    return sum(mib or 0 for each, mib in listed if each not in ours) * MIB


def told_names(reduced: object, pod: PodUid) -> Iterator[tuple[str, str]]:
    assert isinstance(reduced, dict)
    if reduced["metadata"]["uid"] == pod:
        for report in reduced["status"]["containerStatuses"]:
            if "containerID" in report:
                yield report["containerID"].rpartition("/")[2], report["name"]


def metrics_agree(world: World, page: str, peaks: dict[Place, float], seed: int) -> int:
    """How many containers were compared."""
    found, compared, pods = shown(page), 0, held_pods(world)
    used = found["gpushare_plugin_container_used_bytes"]
    for gpu in GPUS:
        assert found["gpushare_plugin_gpu_foreign_bytes"].get(("", "", gpu)) == of_others(world, gpu), f"seed {seed}"
        total = found["gpushare_plugin_gpu_memory_used_bytes"].get(("", "", gpu))
        if total is not None:
            charged = sum(value for (_, _, where), value in used.items() if where == gpu)
            assert total == found["gpushare_plugin_gpu_foreign_bytes"]["", "", gpu] + charged, f"seed {seed}"
        for pod, name in pods.items():
            without = used.get((name, "", gpu), 0)
            assert without == (in_lists(world, pod, "", gpu) or 0), f"seed {seed}: {name}"
    for (pod, name, gpu), mib in world.grants.items():
        if pod in pods:
            key = pods[pod], name, gpu
            assert used.get(key) == in_lists(world, pod, name, gpu), f"seed {seed}: {key}"
            assert found["gpushare_plugin_container_granted_bytes"][key] == mib * MIB
            peaks[key] = max(peaks.get(key, 0), used.get(key, 0))
            assert found["gpushare_plugin_container_peak_bytes"].get(key, 0) >= peaks[key]
            compared += 1
    return compared


@pytest.mark.parametrize("first", range(0, EXAMPLES, AT_ONCE))
def test_metrics_agree_with_the_lists(first: int) -> None:
    compared = 0
    for seed in range(first, first + AT_ONCE):
        peaks: dict[Place, float] = {}
        for world, loop in played(seed, clean=False, policies=(WatchdogPolicy.REPORT,)):  # a kill would move things
            loop.look()
            if len(world.moments) % 4 == 0:
                page = metrics.page(loop.current.view(), {}, {}, "node-a").decode()
                compared += metrics_agree(world, page, peaks, seed)
    assert compared > AT_ONCE


@pytest.mark.parametrize("first", range(0, 2 * EXAMPLES, AT_ONCE))
def test_where_nothing_is_hidden_the_guilty_are_found(first: int) -> None:
    found = 0
    for seed in range(first, first + AT_ONCE):
        for world, loop in played(seed, clean=True):
            loop.look()
            guilty = sum(
                len(guilty_containers(world, pod, gpu)) for pod in {key[0] for key in world.grants} for gpu in GPUS
            )
            latest = loop.current.latest
            assert latest is not None
            assert (latest.over or 0) >= guilty, f"seed {seed}"
            found += guilty
    assert found
