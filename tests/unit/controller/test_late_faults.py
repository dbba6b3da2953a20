"""A patch whose reply is lost never gives memory twice and never loses it."""

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.wire import allocation as allocation_wire
from testing.builders import make_allocation, make_grant
from testing.controller.bypassing import add_bypassed, annotations, run_containers, tick
from testing.controller.world import World, path_of
from testing.fakes.kube import Call, Fault, LandsLater


def is_patch(call: Call) -> bool:
    return call.verb == "patch"


def is_read(call: Call) -> bool:
    return call.verb == "get"


def disturbed(world: World, gib: int, fault: Fault, *, unread: bool = False) -> JsonObject:
    """A pod whose first patch goes wrong, and of which the watch has shown nothing since."""
    pod = add_bypassed(world, gib)
    world.see()
    world.api.fail_next(is_patch, fault)
    if unread:  # the first look finds the pod, the one after the patch does not
        world.api.fail_next(lambda call: is_read(call) and world.api.count("patch") > 0, "lost-request")
    world.reconciler.tick()
    return pod


def test_a_lost_reply_is_resolved_by_reading_the_pod(world: World) -> None:
    pod = disturbed(world, 3, "lost-reply")
    assert world.state.cache.snapshot().unconfirmed == 0
    assert world.used() == {"GPU-0": 3}
    world.see()
    assert world.held_by(pod) is not None
    assert world.used() == {"GPU-0": 3}
    assert world.reconciler.bypassed.bound_late == 1


def test_a_lost_reply_and_a_pod_that_cannot_be_read_keep_the_memory(world: World) -> None:
    disturbed(world, 9, "lost-reply", unread=True)
    assert world.state.cache.snapshot().unconfirmed == 1
    assert world.used() == {"GPU-0": 9}
    world.see()
    assert world.state.cache.snapshot().unconfirmed == 0
    assert world.used() == {"GPU-0": 9}
    assert world.state.cache.snapshot().differences() == []


@pytest.mark.parametrize("fault", ["lost-request", LandsLater(), kube.ServerFaultError("boom")])
def test_without_any_word_the_same_choice_is_sent_again(world: World, fault: Fault) -> None:
    pod = disturbed(world, 9, fault)
    assert world.used() == {"GPU-0": 9}
    # By now GPU-0 has too little left for the pod; what was set aside for it is its own.
    tick(world, 5)
    assert world.gpus_of(pod) == ["GPU-0"]
    world.api.land()
    world.see()
    assert world.used() == {"GPU-0": 9}
    assert world.state.cache.snapshot().unconfirmed == 0


def test_a_patch_that_lands_late_meets_memory_that_was_kept_for_it(world: World) -> None:
    pod = disturbed(world, 9, LandsLater())
    for _ in range(3):
        other = world.add_pod(9)
        world.see()
        world.bind(other)
    assert world.used() == {"GPU-0": 9, "GPU-1": 9}
    assert world.api.land() == 1
    world.see()
    assert world.truth()[world.ledger().inventory.node].over_committed() == {}
    assert world.gpus_of(pod) == ["GPU-0"]


def test_an_in_doubt_reservation_ends_when_the_pod_shows_nothing_long_after(world: World) -> None:
    pod = disturbed(world, 9, "lost-request")
    run_containers(world, pod, "c0")  # so that no one tries again
    tick(world, 60)
    assert world.used() == {"GPU-0": 9}
    tick(world, 61)
    assert world.used() == {}
    assert world.state.cache.snapshot().unconfirmed == 0


def test_an_in_doubt_reservation_is_left_to_the_watch_when_the_pod_shows_its_gpus(world: World) -> None:
    disturbed(world, 9, "lost-reply", unread=True)
    world.clock.at += 130
    world.reconciler.tick()
    assert world.used() == {"GPU-0": 9}
    world.see()
    assert world.used() == {"GPU-0": 9}


def test_an_in_doubt_reservation_ends_with_its_pod(world: World) -> None:
    pod = disturbed(world, 9, "lost-request")
    world.api.vanish(path_of(pod))
    tick(world, 1)
    assert world.used() == {"GPU-0": 9}
    tick(world, 11)
    assert world.used() == {}


def test_a_pod_that_ends_gives_back_what_was_set_aside_for_it(world: World) -> None:
    pod = disturbed(world, 9, LandsLater())
    world.finish(pod)
    tick(world, 1)
    assert world.used() == {}
    world.api.land()
    tick(world, 1)
    assert world.used() == {}
    assert world.state.cache.snapshot().differences() == []


@pytest.mark.parametrize(
    "error", [kube.ConflictError("no"), kube.TooManyRequestsError("no"), kube.BadRequestError("no")]
)
def test_what_is_refused_is_given_back(world: World, error: kube.KubeError) -> None:
    pod = disturbed(world, 9, error)
    assert world.used() == {}
    tick(world, 5)
    assert world.held_by(pod) is not None


def test_a_refusal_because_somebody_else_was_first_shows_what_he_gave(world: World) -> None:
    pod = add_bypassed(world, 9)
    world.see()
    theirs = make_allocation("x", make_grant(1, gib=9, container="c0"))
    written = {names.ANNOTATION_ALLOCATION: allocation_wire.encode(theirs)}

    class First(kube.ConflictError):
        pass

    world.api.fail_next(is_patch, First("somebody was first"))
    real = world.api.patch

    def patch(path: str, body: JsonObject, **options: object) -> JsonObject:
        world.edit_pod(pod, lambda found: found["metadata"].update(annotations=written))
        return real(path, body)

    world.api.patch = patch  # type: ignore[method-assign,assignment] # somebody else writes in between
    world.reconciler.tick()
    assert world.used() == {"GPU-1": 9}
    assert annotations(world, pod) == written


def test_a_pod_that_vanishes_meanwhile_leaves_nothing(world: World) -> None:
    disturbed(world, 9, kube.NotFoundError("gone"))
    assert world.used() == {}


def test_one_silence_is_enough_for_a_tick(world: World) -> None:
    for _ in range(5):
        add_bypassed(world, 1)
    world.see()
    world.api.fail_next(is_patch, "lost-request", times=9)
    world.reconciler.tick()
    assert world.api.count("patch") == 1
    world.api.calm()
    world.api.fail_next(is_read, "lost-request", times=9)
    world.api.calls.clear()
    world.reconciler.tick()
    assert world.api.count("get") == 1


def test_gpus_that_fell_ill_while_no_one_knows_are_not_sent_again(world: World) -> None:
    pod = disturbed(world, 9, "lost-request")
    world.state.cache.set_unhealthy(world.ledger().inventory.node, frozenset({0}))
    tick(world, 5)
    assert world.api.count("patch") == 1
    assert world.used() == {"GPU-0": 9}
    # Long after, the uncertainty ends and the pod gets others.
    for _ in range(5):
        tick(world, 65)
    assert world.gpus_of(pod) == ["GPU-1"]
    assert world.state.cache.snapshot().differences() == []


def test_a_leader_that_falls_sends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    add_bypassed(world, 9)
    world.see()
    reserve = world.state.reserve_bypassed

    def losing(*args: object, **options: object) -> object:
        world.leads = False
        return reserve(*args, **options)  # type: ignore[arg-type] # passed on as it came

    monkeypatch.setattr(world.state, "reserve_bypassed", losing)
    world.reconciler.tick()
    assert world.api.count("patch") == 0
    assert world.used() == {}
