"""Every API server, however late it hears of a bundle, verifies every replica, however late it takes up a leaf."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from certs import store
from certs.manager import CertificateManager
from certs.rotation import Phase
from gpushare.kube import api as kube
from tests.unit.certs.conftest import DAY_S, MUTATING, SECRET, VALIDATING, World, verifies

PROPAGATION_S, TICK_S = 60, 5


class Watchers:
    """API servers that see each configuration up to the propagation time late, and replicas that look now and then."""

    def __init__(self, world: World, replicas: list[CertificateManager]) -> None:
        self.world, self.replicas = world, replicas
        self.rng = random.Random(7)
        self.history: list[frozenset[bytes]] = []
        self.phases: list[Phase] = []
        self.verified: set[tuple[bytes, bytes, bytes]] = set()  # certificate, key, bundle: the same need no second try

    def check(self) -> None:
        self.history.append(frozenset(self.world.bundles()))
        recent = frozenset().union(*self.history[-(PROPAGATION_S // TICK_S) :])
        for replica in self.replicas:
            certificate, key = (Path(path).read_bytes() for path in store.pair_paths(Path(replica.settings.cert_dir)))
            for bundle in recent:
                if (certificate, key, bundle) not in self.verified:
                    assert verifies(replica.settings.cert_dir, bundle)
                    self.verified.add((certificate, key, bundle))

    def live(self, seconds: int, *, lazy: bool) -> None:
        for tick in range(seconds // TICK_S):
            self.world.pass_s(TICK_S)
            for replica in self.replicas:
                if not lazy or tick % 3 == 0 or self.rng.random() < 0.3:
                    self.phases.append(replica.ensure_once().state.phase)
            self.check()


CAUSES: dict[str, Callable[[World], None]] = {
    "asked for": lambda world: world.ask_rotation("2026-03-01"),
    "no Secret": lambda world: world.api.vanish(SECRET),
    "no key of the CA": lambda world: world.corrupt(ca_key=None),
    "damaged": lambda world: world.corrupt(ca_key=None, ca_crt="%%", tls_crt="%%", tls_key=None),
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES.keys())
def test_no_handshake_fails_while_the_ca_is_replaced(world: World, cause: Callable[[World], None], lazy: bool) -> None:
    replicas = [world.looked(name) for name in "abc"]
    before = world.secret()
    watchers = Watchers(world, replicas)
    watchers.live(PROPAGATION_S, lazy=lazy)
    cause(world)
    watchers.live(PROPAGATION_S + 120 + PROPAGATION_S + 60, lazy=lazy)
    after = world.secret()
    assert list(dict.fromkeys(watchers.phases)) == [Phase.STEADY, Phase.ANNOUNCING, Phase.RETIRING]
    assert watchers.phases[-1] is Phase.STEADY
    assert after.ca.certificate != before.ca.certificate
    assert after.bundle == after.ca.certificate
    assert set(world.bundles()) == {after.bundle}


def test_a_ca_is_replaced_well_before_it_expires(world: World) -> None:
    replica = world.replica()
    world.pass_s(-488 * DAY_S)
    replica.ensure_once()
    before = world.secret()
    world.pass_s(488 * DAY_S)  # past two thirds of the CA's life, and of the leaf's
    replica.ensure_once()
    watchers = Watchers(world, [replica])
    watchers.live(400, lazy=False)
    assert world.secret().ca.certificate != before.ca.certificate
    assert watchers.phases[-1] is Phase.STEADY


def test_restarts_at_any_moment_of_a_rotation_lose_nothing(world: World) -> None:
    world.looked()
    world.ask_rotation("1")
    for tick in range(60):
        world.pass_s(TICK_S)
        world.looked(f"restarted-{tick}")
        assert world.verify(f"restarted-{tick}")
    assert world.replica().ensure_once().state.phase is Phase.STEADY
    assert world.secret().rotated == "1"


def test_a_value_is_rotated_for_once_and_the_next_value_again(world: World) -> None:
    manager = world.looked()
    cas = [world.secret().ca.certificate]
    for value in ("1", "1", "2"):
        world.ask_rotation(value)
        world.live(manager)
        cas.append(world.secret().ca.certificate)
    assert cas[0] != cas[1] == cas[2] != cas[3]


def test_the_switch_waits_until_both_configurations_were_read_back(world: World) -> None:
    manager = world.looked()
    before = world.secret().leaf.key
    world.ask_rotation("1")
    world.fail("update", VALIDATING, kube.ForbiddenError("no"), times=40)
    world.live(manager, seconds=200)
    for _ in range(12):
        manager.ensure_once()
        assert world.secret().leaf.key == before
        world.pass_s(TICK_S)
    manager.ensure_once()
    assert world.secret().leaf.key != before


def test_a_bundle_that_vanishes_restarts_the_waiting_time(world: World) -> None:
    manager = world.looked()
    before = world.secret().leaf.key
    world.ask_rotation("1")
    manager.ensure_once()
    world.pass_s(55)
    world.api.edit(MUTATING, lambda body: body["webhooks"][1]["clientConfig"].pop("caBundle"))
    for seconds, is_switched in ((0, False), (10, False), (50, True)):
        world.pass_s(seconds)
        manager.ensure_once()
        assert (world.secret().leaf.key != before) == is_switched
