"""Certificates that change while connections come, and clients that stop in the middle."""

import logging
import socket
import ssl
import threading
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from certs import authority
from certs.authority import KeyPair
from tests.unit.deviceplugin.build import ManualClock
from webhook import tls
from webhook.tls import Contexts

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def leaves() -> tuple[KeyPair, KeyPair]:
    ca = authority.make_ca(now=NOW, life=timedelta(days=2))
    return tuple(  # type: ignore[return-value] # a pair
        authority.make_leaf(ca, names=frozenset({"localhost"}), now=NOW, life=timedelta(days=1)) for _ in range(2)
    )


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


def test_the_context_is_made_once_for_a_certificate(tmp_path: Path, leaves: tuple[KeyPair, KeyPair]) -> None:
    write(tmp_path, leaves[0])
    contexts = Contexts(directory=tmp_path)
    assert contexts.current() is contexts.current()
    assert contexts.current().minimum_version is ssl.TLSVersion.TLSv1_2


def test_the_next_connection_gets_the_new_certificate(tmp_path: Path, leaves: tuple[KeyPair, KeyPair]) -> None:
    contexts = Contexts(directory=tmp_path)
    for leaf in leaves:
        write(tmp_path, leaf)
        assert served(contexts.current()) == leaf.certificate


def test_half_of_a_new_pair_leaves_the_old_one_in_use(
    tmp_path: Path, leaves: tuple[KeyPair, KeyPair], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, leaves[0])
    contexts = Contexts(directory=tmp_path)
    old = contexts.current()
    (tmp_path / "tls.crt").write_bytes(leaves[1].certificate)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert contexts.current() is old
    assert [record.getMessage() for record in caplog.records] == ["certificate not loaded"]
    (tmp_path / "tls.key").write_bytes(leaves[1].key)
    assert served(contexts.current()) == leaves[1].certificate


def test_files_that_vanish_leave_the_last_certificate_in_use(tmp_path: Path, leaves: tuple[KeyPair, KeyPair]) -> None:
    write(tmp_path, leaves[0])
    contexts = Contexts(directory=tmp_path)
    old = contexts.current()
    (tmp_path / "tls.key").unlink()
    assert contexts.current() is old
    assert contexts.problem() == ""


def test_without_any_certificate_the_problem_has_a_name(tmp_path: Path) -> None:
    contexts = Contexts(directory=tmp_path)
    with pytest.raises(FileNotFoundError):
        contexts.current()
    assert contexts.problem() == f"no certificate: [Errno 2] No such file or directory: '{tmp_path}/tls.crt'"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_CLIENT_S", 0.05)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_client_that_stops_in_the_handshake_is_lost(
    tmp_path: Path, leaves: tuple[KeyPair, KeyPair], impatient: None, pair: tuple[socket.socket, socket.socket]
) -> None:
    write(tmp_path, leaves[0])
    context = Contexts(directory=tmp_path).current()
    with (
        context.wrap_socket(pair[1], server_side=True, do_handshake_on_connect=False) as connection,
        pytest.raises(ConnectionResetError, match="the client was silent for too long"),
    ):
        connection.do_handshake()


def test_a_client_that_stops_in_the_request_is_lost(
    tmp_path: Path, leaves: tuple[KeyPair, KeyPair], impatient: None, pair: tuple[socket.socket, socket.socket]
) -> None:
    write(tmp_path, leaves[0])
    context = Contexts(directory=tmp_path).current()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(pair[1], server_side=True, do_handshake_on_connect=False) as connection:
        thread = threading.Thread(target=connection.do_handshake)
        thread.start()
        with client.wrap_socket(pair[0]) as ours:
            thread.join()
            ours.sendall(b"POST")
            connection.setblocking(True)
            assert connection.recv(10) == b"POST"
            with pytest.raises(ConnectionResetError):
                connection.recv(10)
            with pytest.raises(ConnectionResetError):
                connection.sendall(b"x" * 10_000_000)
            connection.setblocking(False)
            with pytest.raises(ssl.SSLWantReadError):
                connection.recv(10)


def test_a_client_that_sends_one_byte_after_the_other_is_lost(
    tmp_path: Path,
    leaves: tuple[KeyPair, KeyPair],
    pair: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(tls.PatientSocket, "clock", clock)
    write(tmp_path, leaves[0])
    context = Contexts(directory=tmp_path).current()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(pair[1], server_side=True, do_handshake_on_connect=False) as connection:
        thread = threading.Thread(target=connection.do_handshake)
        thread.start()
        with client.wrap_socket(pair[0]) as ours:
            thread.join()
            connection.setblocking(True)
            for _ in range(2):  # the time is that of one request
                for _ in range(3):
                    ours.sendall(b"P")
                    assert connection.recv(10) == b"P"
                    clock.seconds += 1.9
                connection.sendall(b"answer")
            for _ in range(4):
                ours.sendall(b"P")
                assert connection.recv(10) == b"P"
                clock.seconds += 1.9
            ours.sendall(b"P")
            with pytest.raises(ConnectionResetError, match="the client was silent for too long"):
                connection.recv(10)


def test_however_much_is_asked_for_little_is_allocated(
    tmp_path: Path, leaves: tuple[KeyPair, KeyPair], pair: tuple[socket.socket, socket.socket]
) -> None:
    write(tmp_path, leaves[0])
    context = Contexts(directory=tmp_path).current()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(pair[1], server_side=True, do_handshake_on_connect=False) as connection:
        thread = threading.Thread(target=connection.do_handshake)
        thread.start()
        with client.wrap_socket(pair[0]) as ours:
            thread.join()
            connection.setblocking(True)
            ours.sendall(b"x")
            tracemalloc.start()
            assert connection.recv(2**30) == b"x"
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 2**20
