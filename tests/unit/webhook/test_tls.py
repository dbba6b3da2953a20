"""Certificates that change while connections come."""

import logging
import socket
import ssl
import threading
from pathlib import Path

import pytest

from certs.authority import KeyPair
from testing.webhook import authority_and_leaf
from webhook.main import Contexts


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
    contexts = Contexts(directory=tmp_path)
    for leaf in leaves:
        write(tmp_path, leaf)
        assert served(contexts.current()) == leaf.certificate
    write(tmp_path, leaves[0])
    contexts = Contexts(directory=tmp_path)
    assert contexts.current() is contexts.current()
    assert contexts.current().minimum_version is ssl.TLSVersion.TLSv1_2


def test_half_of_a_new_pair_leaves_the_old_one_in_use_and_so_do_files_that_vanish(
    tmp_path: Path, leaves: tuple[KeyPair, KeyPair], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, leaves[0])
    contexts = Contexts(directory=tmp_path)
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
    contexts = Contexts(directory=tmp_path)
    with pytest.raises(FileNotFoundError):
        contexts.current()
    assert contexts.problem() == f"no certificate: [Errno 2] No such file or directory: '{tmp_path}/tls.crt'"
