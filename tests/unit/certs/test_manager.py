"""What managers make and repair, and that every API server verifies every replica meanwhile."""

import base64
import math
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs import __main__ as command, store
from certs.__main__ import describe
from certs.manager import CertificateManager, Status
from certs.rotation import Phase
from certs.settings import CertSettings
from certs.store import SecretData
from gpushare.errors import SettingsError
from gpushare.kube import api as kube
from gpushare.runtime import options
from testing.fakes.kube import Fault
from tests.unit.certs.conftest import DAY_S, MUTATING, SECRET, SECRETS, VALIDATING, World, verifies

GARBAGE = base64.b64encode(b"garbage").decode()


def spoil_bundle(world: World, left: str | None) -> None:
    world.api.edit(MUTATING, lambda body: body["webhooks"][0]["clientConfig"].update(caBundle=left))


def test_a_fresh_cluster_gets_secret_files_and_bundle_in_one_look_and_a_second_writes_nothing(world: World) -> None:
    manager = world.replica()
    assert math.isnan(manager.leaf_left_s())
    assert manager.ensure_once().in_configurations
    assert world.api.read(SECRET)["type"] == "kubernetes.io/tls"
    assert world.verify()
    assert manager.leaf_left_s() == pytest.approx(90 * DAY_S)
    world.api.calls.clear()
    world.looked()
    assert [call.verb for call in world.api.calls] == ["get", "get", "get"]


def test_three_replicas_that_start_together_agree_on_one_ca(world: World) -> None:
    together = threading.Barrier(3)

    def start(name: str) -> None:
        manager = world.replica(name)
        together.wait()
        manager.ensure_once()

    threads = [threading.Thread(target=start, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.api.count("update", "/secrets/") == 0
    assert set(world.bundles()) == {world.secret().bundle}
    assert all(world.verify(name) for name in "abc")


@pytest.mark.parametrize("verb", ["get", "create", "update"])
@pytest.mark.parametrize(
    "fault",
    ["lost-reply", "lost-request", kube.ServerFaultError("etcd"), kube.ConflictError("x"), kube.ForbiddenError("no")],
)
def test_any_one_failed_call_is_made_good_by_the_next_looks(world: World, verb: str, fault: Fault) -> None:
    manager = world.replica()
    for _ in range(2):
        world.fail(verb, "", fault)
        try:
            manager.ensure_once()
        except kube.KubeError:
            manager.ensure_once()
    manager.ensure_once()
    assert set(world.bundles()) == {world.secret().bundle}
    assert world.verify()


def test_configurations_that_cannot_be_written_do_not_keep_the_leaf_from_being_served(world: World) -> None:
    world.fail("", "webhookconfigurations", kube.ForbiddenError("rbac"), times=4)
    assert not world.replica().ensure_once().in_configurations
    assert verifies(world.root / "a", world.secret().bundle)


def test_a_configuration_that_is_applied_later_gets_the_bundle(world: World) -> None:
    world.api.vanish(VALIDATING)
    manager = world.replica()
    assert manager.ensure_once().in_configurations
    world.configure(VALIDATING)
    manager.ensure_once()
    assert set(world.bundles()) == {world.secret().bundle}


@pytest.mark.parametrize("left", [None, "", "bm8=", "not base64"])
@pytest.mark.parametrize("secret", ["kept", "lost"])
def test_a_bundle_that_somebody_spoils_is_written_again(world: World, left: str | None, secret: str) -> None:
    world.looked("a")
    spoil_bundle(world, left)
    if secret == "lost":
        world.api.vanish(SECRET)
    world.looked("b")
    assert set(world.bundles()) == {world.secret().bundle}
    assert world.verify("b")


def test_a_leaf_is_renewed_by_the_same_ca_which_leaves_the_bundle_when_it_has_expired(world: World) -> None:
    manager = world.looked()
    before = world.secret()
    world.pass_s(61 * DAY_S)
    manager.ensure_once()
    assert world.secret().leaf.key != before.leaf.key
    assert world.secret().bundle == before.bundle
    assert manager.leaf_left_s() == pytest.approx(90 * DAY_S)
    world.pass_s(10_000 * DAY_S)
    manager.ensure_once()
    assert world.secret().ca != before.ca
    assert world.secret().bundle == world.secret().ca.certificate


def spoil(**values: str | None) -> Callable[[World], None]:
    return lambda world: world.corrupt(**values)


def state(text: bytes) -> Callable[[World], None]:
    return spoil(**{"state.json": base64.b64encode(text).decode()})


@pytest.mark.parametrize(
    "damage",
    [
        *(spoil(tls_crt=GARBAGE), spoil(tls_key=GARBAGE), spoil(tls_crt=None, tls_key=None)),
        *(spoil(tls_key="not base64 !"), spoil(ca_key=None), spoil(ca_key=GARBAGE)),
        *(spoil(ca_crt=GARBAGE), spoil(ca_crt=None, ca_key=None)),
        spoil(tls_crt=GARBAGE, tls_key="%%%", ca_crt="", ca_key=GARBAGE),
        *(state(b"garbage"), state(b"[1]"), state(b'{"version": 2, "since": "2026-03-01T00:00:00", "later": 1}')),
        *(spoil(**{"next-ca.crt": GARBAGE}), spoil(**{"next-ca.key": GARBAGE})),
        lambda world: world.api.edit(SECRET, lambda secret: secret.update(data=None)),
        lambda world: world.corrupt(tls_key=base64.b64encode(world.secret().ca.key).decode()),
    ],
)
@pytest.mark.parametrize("heir", ["a", "b"], ids=["files kept", "files lost"])
def test_a_damaged_secret_heals(world: World, damage: Callable[[World], None], heir: str) -> None:
    world.looked("a")
    damage(world)
    manager = world.replica(heir)
    world.live(manager)
    status = manager.ensure_once()
    assert (status.state.phase, status.in_configurations) == (Phase.STEADY, True)
    assert world.verify(heir)


def test_metadata_and_keys_of_others_survive(world: World) -> None:
    manager = world.looked()
    world.corrupt(note=GARBAGE, tls_key=GARBAGE)
    world.ask_rotation("")
    manager.ensure_once()
    secret = world.api.read(SECRET)
    assert secret["data"]["note"] == GARBAGE
    assert "gpushare.dev/rotate" in secret["metadata"]["annotations"]


def test_a_secret_that_changes_all_the_time_is_reported(world: World) -> None:
    world.fail("create", "", kube.ConflictError("x"), times=100)
    message = "gpushare-webhook-tls or a webhook configuration is changed all the time"
    with pytest.raises(kube.ConflictError, match=message):
        world.replica().ensure_once()


def test_the_loop_looks_quickly_while_it_is_not_settled_and_slowly_after(world: World) -> None:
    stop, manager = threading.Event(), world.replica()
    world.fail("", SECRETS, kube.UnreachableError("refused"), times=2)

    def ask(_at: float) -> None:
        if len(world.clock.waits) == 4:
            world.ask_rotation("now")
        if len(world.clock.waits) == 6:
            stop.set()

    world.clock.on_wait = ask
    manager.run(stop)
    assert all(wait <= 1 for wait in world.clock.waits[:2])
    assert world.clock.waits[2:] == [5.0, 5.0, 2.0, 2.0]


def test_the_loop_outlives_what_no_one_foresaw(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, manager = threading.Event(), world.replica()

    def surprise(_self: CertificateManager) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(CertificateManager, "ensure_once", surprise)
    world.clock.on_wait = lambda _at: stop.set() if len(world.clock.waits) == 3 else None
    manager.run(stop)
    assert len(world.clock.waits) == 3


def test_with_files_of_somebody_else_nothing_is_made(world: World) -> None:
    world.looked("theirs")
    world.api.calls.clear()
    manager = world.looked("theirs", cert_source="files")
    assert manager.leaf_left_s() == pytest.approx(90 * DAY_S)
    assert math.isnan(world.looked("empty", cert_source="files").leaf_left_s())
    assert world.api.calls == []


def test_no_key_reaches_a_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    manager = world.looked()
    world.ask_rotation("1")
    world.live(manager)
    assert caplog.records
    assert not any("PRIVATE" in str(vars(record)) for record in caplog.records)


def test_the_leaf_has_the_services_names_and_those_of_the_setting_as_it_is_now(world: World) -> None:
    service = {"gpushare-webhook.gpushare-system.svc", "gpushare-webhook.gpushare-system.svc.cluster.local"}
    for text, more in (("", set()), ("hook.example, 10.1.2.3,", {"10.1.2.3", "hook.example"})):
        settings = options.load(CertSettings, ["--cert-extra-names", text], prog="certs", environ={})
        world.looked(cert_extra_names=settings.cert_extra_names)
        facts = store.state(world.secret()).leaf.facts
        assert facts is not None
        assert facts.names == service | more


def test_the_state_is_told_in_four_lines_without_a_secret(world: World) -> None:
    world.clock.began = datetime(2026, 3, 1, 12, tzinfo=UTC)
    manager = world.replica()
    status = manager.ensure_once()
    assert describe(status, manager.leaf_left_s()) == (
        "leaf: expires in 90.0 days (2026-05-30T12:00:00Z)\n"
        "CA: expires at 2028-02-29T12:00:00Z\n"
        "phase: steady\n"
        "webhook configurations: carry the CA"
    )
    nothing = Status(state=store.state(SecretData()), in_configurations=False)
    assert describe(nothing, float("nan")) == (
        "leaf: none\nCA: none\nphase: steady\nwebhook configurations: do not carry the CA yet"
    )


def test_the_command_makes_what_is_missing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpushare.kube.client.connect", lambda _kubeconfig: world.api)
    monkeypatch.setattr("sys.argv", ["certs", "--cert-dir", str(tmp_path)])
    monkeypatch.setattr("gpushare.runtime.logs.configure", lambda: None)
    assert command.main() == 0
    assert capsys.readouterr().out.startswith("leaf: expires in 90.0 days")
    world.api.fail_next(lambda call: call.path == SECRET, kube.ForbiddenError("secrets: no"))
    assert command.main() == 1
    assert capsys.readouterr().err == "certs: secrets: no\n"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SOURCE", "vault", "GPUSHARE_CERT_SOURCE='vault': write one of self, files"),
        ("CHECK_S", "0", "GPUSHARE_CERT_CHECK_S='0': write a number above 0"),
        ("PROPAGATION_S", "-1", "GPUSHARE_CERT_PROPAGATION_S='-1': write a number of seconds, 0 or more"),
        ("RETIRE_S", "30", "cert_retire_s=30: replicas look every cert_check_s=30 seconds; write at least 60"),
        ("CA_DAYS", "100", "cert_ca_days=100: a CA must outlive its leaves by far; write at least 180"),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        options.load(CertSettings, [], prog="certs", environ={f"GPUSHARE_CERT_{name}": value})
    assert str(caught.value) == message


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
