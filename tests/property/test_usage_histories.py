"""Histories of process lists: the watchdog touches only pods above their grant, and finds them."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random

import pytest
from hypothesis import settings

from deviceplugin.node import Refusals
from deviceplugin.usage.join import WatchdogPolicy
from deviceplugin.usage.loop import UsageLoop, Watchdog
from gpushare.identity import GpuUuid, PodUid
from testing.deviceplugin.usage import usage_loop
from tests.property.usage_world import GPUS, Moment, Real, World

GRACE_S, GAP_S, STEPS = 12.0, 20.0, 12
EXAMPLES, AT_ONCE = settings().max_examples, 50


class WorldLists:
    """See ProcessLists."""

    def __init__(self, world: World) -> None:
        self.read = world.read_lists


def plugin(world: World, policy: WatchdogPolicy) -> UsageLoop:
    watchdog = Watchdog(
        policy=policy,
        grace_s=GRACE_S,
        gap_s=GAP_S,
        tolerance_mib=0,
        api=world.api,
        table=world,
        events=Refusals(api=world.api, clock=world.clock),
        clock=world.clock,
    )
    lists = WorldLists(world)
    return usage_loop(world.feed, world.cache, world.clock, lists=lists, table=world, watchdog=watchdog)


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


def containers_above(world: World, pod: PodUid, gpu: GpuUuid) -> set[str]:
    """Containers of a pod that were above their own grant for too long."""
    found = set()
    for owner, name in world.names.items():
        granted = world.grants.get((pod, name, gpu))
        if owner.pod == pod and granted is not None:
            over = {i: moment.used.get((owner, gpu), 0) > granted for i, moment in enumerate(world.moments)}
            if over[len(world.moments) - 1] and above_since(world, over, gpu) >= GRACE_S:
                found.add(owner.container)
    return found


def pod_is_above(world: World, pod: PodUid, gpu: GpuUuid) -> bool:
    """Whether all containers of a pod together were above what all of them may use."""
    granted = sum(mib for (each, _, where), mib in world.grants.items() if (each, where) == (pod, gpu))

    def used(moment: Moment) -> int:
        return sum(mib for (owner, where), mib in moment.used.items() if (owner.pod, where) == (pod, gpu))

    over = {i: used(moment) > granted for i, moment in enumerate(world.moments)}
    return over[len(world.moments) - 1] and above_since(world, over, gpu) >= GRACE_S


def is_above(world: World, pod: PodUid) -> bool:
    return any(containers_above(world, pod, gpu) or pod_is_above(world, pod, gpu) for gpu in GPUS)


def process_is_above(world: World, process: Real) -> bool:
    if process.owner is None:
        return False
    pod, container = process.owner.pod, process.owner.container
    return any(container in containers_above(world, pod, gpu) or pod_is_above(world, pod, gpu) for gpu in GPUS)


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
def test_only_pods_above_their_grant_are_touched(first: int) -> None:
    acted = 0
    for seed in range(first, first + AT_ONCE):
        for world, loop in played(seed, clean=False, leaves_memory=seed % 2 == 0):
            calls, ended = len(world.api.calls), len(world.ended)
            loop.look()
            for one in touched(world, calls=calls, ended=ended):
                acted += 1
                if isinstance(one, Real):
                    assert process_is_above(world, one), f"seed {seed}: {one}"
                else:
                    assert is_above(world, one), f"seed {seed}: {one}"
    assert acted  # else this proves nothing


@pytest.mark.parametrize("first", range(0, 2 * EXAMPLES, AT_ONCE))
def test_where_nothing_is_hidden_those_above_are_found(first: int) -> None:
    found = 0
    for seed in range(first, first + AT_ONCE):
        for world, loop in played(seed, clean=True):
            loop.look()
            above = sum(
                len(containers_above(world, pod, gpu)) for pod in {key[0] for key in world.grants} for gpu in GPUS
            )
            latest = loop.latest
            assert latest is not None
            assert (latest.over or 0) >= above, f"seed {seed}"
            found += above
    assert found
