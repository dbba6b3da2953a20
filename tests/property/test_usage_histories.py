"""Histories of process lists: the watchdog touches only pods above their grant, and finds them."""

from collections.abc import Collection, Iterator, Sequence
from random import Random
from unittest.mock import Mock

import pytest
from hypothesis import settings

from deviceplugin.cgroups import CgroupOwner
from deviceplugin.node import Refusals
from deviceplugin.usage.join import WatchdogPolicy
from deviceplugin.usage.loop import UsageLoop, Watchdog
from gpushare.identity import GpuUuid, PodUid
from testing.deviceplugin.usage import usage_loop
from tests.property.usage_world import GPUS, World

GRACE_S, GAP_S, STEPS = 12.0, 20.0, 12
ENDLESS = 2**63  # MiB of a container without a grant: only its pod has a limit
EXAMPLES, AT_ONCE = settings().max_examples, 50


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
    lists = Mock(read=world.read_lists)
    return usage_loop(world.feed, world.cache, world.clock, lists=lists, table=world, watchdog=watchdog)


# The oracle: it knows what really was, and nothing of how it was found out.


def used_too_much(world: World, owners: Collection[CgroupOwner], granted_mib: int, gpu: GpuUuid) -> bool:
    """Whether they did together in the last sample, and for too long before in every one that the GPU answered."""
    now = last = first = world.moments[-1].at
    for number, moment in enumerate(reversed(world.moments)):
        above = sum(moment.used.get((owner, gpu), 0) for owner in owners) > granted_mib
        if number and gpu not in moment.answered:
            continue
        if not above or last - moment.at > GAP_S:
            break
        first = last = moment.at
    return now - first >= GRACE_S


def containers_above(world: World, pod: PodUid, gpu: GpuUuid) -> set[str]:
    """Containers of a pod that were above their own grant for too long."""
    return {
        owner.container
        for owner, name in world.names.items()
        if owner.pod == pod and used_too_much(world, [owner], world.grants.get((pod, name, gpu), ENDLESS), gpu)
    }


def is_above(world: World, pod: PodUid, container: str | None = None) -> bool:
    """Whether a pod, or the container that is named, or else any of its, was above what it may use."""
    owners = {owner for moment in world.moments for owner, _ in moment.used if owner.pod == pod}
    for gpu in GPUS:
        granted = sum(mib for (each, _, where), mib in world.grants.items() if (each, where) == (pod, gpu))
        above = containers_above(world, pod, gpu)
        if used_too_much(world, owners, granted, gpu) or (above if container is None else container in above):
            return True
    return False


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


def touched(world: World, *, calls: int, ended: int) -> Iterator[tuple[PodUid, str | None]]:
    """Pods, and containers of processes, that were acted upon since so many calls and signals."""
    for call in world.api.calls[calls:]:
        body = call.body or {}
        if call.path.endswith("/eviction"):
            yield PodUid(body["deleteOptions"]["preconditions"]["uid"]), None
        elif call.path.endswith("/events"):
            yield PodUid(body["involvedObject"]["uid"]), None
    for process in world.ended[ended:]:
        assert process.owner
        yield process.owner.pod, process.owner.container


@pytest.mark.parametrize("first", range(0, 10 * EXAMPLES, AT_ONCE))
def test_only_pods_above_their_grant_are_touched(first: int) -> None:
    acted = 0
    for seed in range(first, first + AT_ONCE):
        for world, loop in played(seed, clean=False, leaves_memory=seed % 2 == 0):
            calls, ended = len(world.api.calls), len(world.ended)
            loop.look()
            for pod, container in touched(world, calls=calls, ended=ended):
                acted += 1
                assert is_above(world, pod, container), f"seed {seed}: {pod} {container}"
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
