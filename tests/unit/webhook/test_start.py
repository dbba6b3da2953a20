"""Before the first request: settings and certificates, and what is said when they are missing."""

import logging
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from certs import store
from certs.authority import KeyPair
from certs.manager import CertificateManager
from certs.settings import CertSettings
from gpushare.errors import SettingsError
from gpushare.kube import api as kube
from gpushare.runtime import options
from gpushare.runtime.process import Signals
from gpushare.runtime.tls import Contexts
from gpushare.units import MemoryUnit, ResourceConfig
from testing.clock import ManualClock
from testing.fakes.kube import FakeKube
from testing.webhook import authority_and_leaf
from webhook import main as program
from webhook.settings import Settings


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def hasty() -> ManualClock:
    """Does not sleep; certificates are verified at the machine's time."""
    return ManualClock(0, began=datetime.now(UTC))


def manager(directory: Path, api: FakeKube, clock: ManualClock, **settings: str) -> CertificateManager:
    chosen = CertSettings(cert_dir=str(directory), **settings)  # type: ignore[arg-type] # texts only
    return CertificateManager(api=api, clock=clock, settings=chosen)


def contexts_of(directory: Path) -> Contexts:
    return Contexts(files=partial(store.pair_paths, directory))


def test_a_server_that_is_late_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api, clock = FakeKube(), hasty()
    api.fail_next(lambda call: "secrets" in call.path, kube.UnreachableError("down"), times=2)
    contexts = contexts_of(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert program._has_certificate(manager(tmp_path, api, clock), contexts, Signals())
    assert [r.getMessage() for r in caplog.records if r.name == "webhook"] == ["no certificate yet"] * 2
    assert contexts.problem() == ""


def test_a_signal_ends_the_wait(tmp_path: Path) -> None:
    clock = hasty()
    clock.on_wait = lambda _at: signal.raise_signal(signal.SIGTERM) if len(clock.waits) == 3 else None
    waiting = manager(tmp_path, FakeKube(), clock, cert_source="files")
    signals = Signals()
    signals.install()
    assert not program._has_certificate(waiting, contexts_of(tmp_path), signals)
    assert len(clock.waits) == 3


def test_a_signal_after_the_certificate_was_found_is_not_lost(tmp_path: Path) -> None:
    signals = Signals()
    signals.install()
    signal.raise_signal(signal.SIGTERM)
    assert not program._has_certificate(manager(tmp_path, FakeKube(), hasty()), contexts_of(tmp_path), signals)
    caught: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: caught.append(number))  # as gunicorn does
    options = program._options(Settings(), contexts_of(tmp_path), threading.Event(), signals)
    options["when_ready"](None)  # type: ignore[operator] # a hook
    assert caught == [signal.SIGTERM]


@pytest.mark.parametrize(("wanted", "whole"), [(7.6, 8), (0.2, 1)])
def test_one_process_has_whole_seconds_to_end_its_requests(wanted: float, whole: int, tmp_path: Path) -> None:
    options = program._options(Settings(graceful_timeout_s=wanted), contexts_of(tmp_path), threading.Event(), Signals())
    assert (options["workers"], options["graceful_timeout"]) == (1, whole)
    options["when_ready"](None)  # type: ignore[operator] # a hook, which sends no signal where none came


def test_a_server_with_a_certificate_is_ready_until_it_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts, kept = contexts_of(tmp_path), manager(tmp_path, FakeKube(), hasty())
    assert program._not_ready(contexts, kept).startswith("no certificate: ")
    kept.ensure_once()
    assert program._not_ready(contexts, kept) == ""
    monkeypatch.setattr(CertificateManager, "leaf_left_s", lambda _: -0.1)
    assert program._not_ready(contexts, kept) == "the certificate has expired"


def test_a_bad_setting_is_reported_and_nothing_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--port", "none"]) == 2
    assert capsys.readouterr().err == "gpushare-webhook: --port='none': write a port from 0 to 65535\n"


@pytest.fixture(scope="module")
def leaves() -> tuple[KeyPair, KeyPair]:
    return authority_and_leaf()[1], authority_and_leaf()[1]


def write(directory: Path, leaf: KeyPair) -> None:
    for name, content in (("tls.crt", leaf.certificate), ("tls.key", leaf.key)):
        spare = directory / f"{name}.new"
        spare.write_bytes(content)
        spare.replace(directory / name)


def served(context: ssl.SSLContext) -> bytes:
    """The certificate that a client gets, PEM."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=lambda: context.wrap_socket(theirs, server_side=True).close())
        thread.start()
        with client.wrap_socket(ours) as connection:
            found = connection.getpeercert(binary_form=True)
        thread.join()
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found).encode()


def test_the_context_is_made_once_for_a_certificate_and_again_for_the_next(
    tmp_path: Path, leaves: tuple[KeyPair, KeyPair]
) -> None:
    contexts = contexts_of(tmp_path)
    for leaf in leaves:
        write(tmp_path, leaf)
        assert served(contexts.current()) == leaf.certificate
    write(tmp_path, leaves[0])
    contexts = contexts_of(tmp_path)
    assert contexts.current() is contexts.current()
    assert contexts.current().minimum_version is ssl.TLSVersion.TLSv1_2


def test_half_of_a_new_pair_leaves_the_old_one_in_use_and_so_do_files_that_vanish(
    tmp_path: Path, leaves: tuple[KeyPair, KeyPair], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, leaves[0])
    contexts = contexts_of(tmp_path)
    old = contexts.current()
    (tmp_path / "tls.crt").write_bytes(leaves[1].certificate)
    with caplog.at_level(logging.WARNING):
        assert contexts.current() is old
    assert caplog.messages[-1] == "certificate not loaded"
    (tmp_path / "tls.key").write_bytes(leaves[1].key)
    assert served(contexts.current()) == leaves[1].certificate
    new = contexts.current()
    (tmp_path / "tls.key").unlink()
    assert contexts.current() is new
    assert contexts.problem() == ""


def test_without_any_certificate_the_problem_has_a_name(tmp_path: Path) -> None:
    contexts = contexts_of(tmp_path)
    with pytest.raises(FileNotFoundError):
        contexts.current()
    assert contexts.problem() == f"no certificate: [Errno 2] No such file or directory: '{tmp_path}/tls.crt'"


def load(**variables: str) -> Settings:
    return options.load(Settings, [], prog="gpushare-webhook", environ=variables)


def test_unit_whole_gpus_and_the_controllers_namespace_are_read() -> None:
    assert load(GPUSHARE_WHOLE_GPUS="false").resource_config == load().resource_config == ResourceConfig()
    settings = load(GPUSHARE_MEMORY_UNIT="256MiB", GPUSHARE_WHOLE_GPUS="true")
    assert settings.resource_config == ResourceConfig(unit=MemoryUnit(256), whole_gpus=True)
    assert load(GPUSHARE_NAMESPACE="ns").controller == "system:serviceaccount:ns:gpushare-controller"
    assert load(GPUSHARE_CONTROLLER_USER="alice").controller == "alice"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("threads", "512", 512),
        ("foreign_resources", "a.b/x, c.d/y-* ,", ("a.b/x", "c.d/y-*")),
        ("foreign_resources", "", ()),
        ("scheduler_name", "", ""),
        ("extender_schedulers", "a, b", ("a", "b")),
    ],
)
def test_lists_and_words_are_read(name: str, text: str, value: object) -> None:
    assert getattr(load(**{f"GPUSHARE_{name.upper()}": text}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(("THREADS", value, "write a number of threads from 1 to 512") for value in ("0", "many", "513")),
        *(
            (
                "FOREIGN_RESOURCES",
                value,
                f"{value!r} is no name of a resource; write names such as nvidia.com/gpu, or beginnings such as"
                " nvidia.com/mig-*",
            )
            for value in ("nvidia.com", "nvidia.com/", "nvidia.com/*-x")
        ),
    ],
)
def test_a_bad_value_names_the_variable_and_the_fix(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(**{f"GPUSHARE_{name}": value})
    assert str(caught.value) == f"GPUSHARE_{name}={value!r}: {message}"
