from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs import __main__ as command
from certs import store
from certs.__main__ import describe
from certs.manager import Status
from certs.settings import CertSettings
from certs.store import SecretData
from gpushare.errors import SettingsError
from gpushare.kube import api as kube
from gpushare.runtime import options
from tests.unit.certs.conftest import SECRET, World


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


def test_names_are_separated_by_commas() -> None:
    loaded = options.load(CertSettings, ["--cert-extra-names", "a.example, 10.0.0.1,"], prog="certs", environ={})
    assert loaded.cert_extra_names == ("a.example", "10.0.0.1")
