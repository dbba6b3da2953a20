"""Certificates and keys, as they are made, read and kept in files."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs import authority, store
from certs.authority import KeyPair
from certs.rotation import Facts, Unreadable
from certs.store import FileStore, SecretData, pair_paths
from tests.unit.certs.conftest import START, verifies

DAY = timedelta(days=1)
CA = authority.make_ca(now=START, life=730 * DAY)
OTHER = authority.make_ca(now=START, life=730 * DAY)
LEAF = authority.make_leaf(CA, names=frozenset({"webhook.svc", "10.0.0.7"}), now=START, life=90 * DAY)


def read(pem: bytes, *issuers: bytes) -> Facts:
    facts = authority.read_certificate(pem, issuers)
    assert isinstance(facts, Facts)
    return facts


def test_a_leaf_serves_its_names_only_and_may_not_sign() -> None:
    certificate = x509.load_pem_x509_certificate(LEAF.certificate)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert authority.read_ca(LEAF.certificate) == Unreadable("may not sign: basicConstraints do not say CA")
    assert read(LEAF.certificate).names == {"webhook.svc", "10.0.0.7"}
    assert not read(CA.certificate).names
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"


def test_a_leaf_begins_an_hour_ago_for_clocks_that_are_behind_and_never_outlives_its_ca() -> None:
    assert read(CA.certificate).not_before == START - timedelta(hours=1)
    short = authority.make_leaf(CA, names=frozenset({"x"}), now=START, life=timedelta(minutes=10))
    assert read(short.certificate).not_before == START - timedelta(minutes=1)
    brief = authority.make_ca(now=START, life=DAY)
    leaf = authority.make_leaf(brief, names=frozenset({"x"}), now=START, life=90 * DAY)
    assert read(leaf.certificate).not_after == START + DAY


def test_issuers_are_found_by_signature_and_a_bundle_is_split_into_its_ca_certificates() -> None:
    among = (b"garbage", OTHER.certificate, CA.certificate)
    assert read(LEAF.certificate, *among).issuer == read(CA.certificate).fingerprint
    assert read(LEAF.certificate, OTHER.certificate).issuer is None
    subjects = {x509.load_pem_x509_certificate(pem).subject for pem in (CA.certificate, OTHER.certificate)}
    assert len(subjects) == 2
    bundle = b"# old\n" + CA.certificate + LEAF.certificate + OTHER.certificate
    assert authority.split(bundle) == (CA.certificate, OTHER.certificate)
    assert authority.split(b"") == authority.split(b"garbage") == ()
    assert authority.read_key(LEAF.key) == read(LEAF.certificate).key != authority.read_key(CA.key)


def locked_key() -> bytes:
    return rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )


def test_what_is_no_certificate_or_no_key_is_unreadable_and_nothing_is_nothing() -> None:
    for pem in [b"garbage", b"\xff\xfe", LEAF.key, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]:
        assert authority.read_certificate(pem) == Unreadable("is no PEM certificate")
        assert authority.read_ca(pem) == Unreadable("is no PEM certificate")
    for pem in [b"garbage", b"\xff\xfe", LEAF.certificate, locked_key()]:
        assert authority.read_key(pem) == Unreadable("is no PEM private key without a password")
    for pem in [b"", b"  \n"]:
        assert authority.read_certificate(pem) is authority.read_ca(pem) is authority.read_key(pem) is None


def test_a_key_that_cannot_sign_for_tls_is_unreadable() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    assert authority.read_key(pem) == Unreadable("is neither an elliptic-curve nor an RSA key")
    with pytest.raises(TypeError, match="neither an elliptic-curve nor an RSA key"):
        authority.make_leaf(KeyPair(CA.certificate, pem), names=frozenset({"x"}), now=START, life=DAY)


def test_keys_do_not_show_in_messages_and_stand_in_the_secret_even_if_they_are_empty() -> None:
    assert "PRIVATE" not in repr(LEAF)
    assert "PRIVATE" not in repr(SecretData(leaf=LEAF))
    assert store.into_secret(SecretData(), {})["data"].items() >= {"tls.crt": "", "tls.key": ""}.items()


def test_a_client_verifies_by_name_address_and_ca(tmp_path: Path) -> None:
    FileStore(tmp_path).save(SecretData(leaf=LEAF, ca=KeyPair(CA.certificate, b"")))
    assert verifies(tmp_path, CA.certificate, server="webhook.svc")
    assert verifies(tmp_path, CA.certificate, server="10.0.0.7")
    assert verifies(tmp_path, OTHER.certificate + CA.certificate, server="webhook.svc")
    assert not verifies(tmp_path, OTHER.certificate, server="webhook.svc")
    assert not verifies(tmp_path, CA.certificate, server="elsewhere.svc")


def contents() -> SecretData:
    ca = authority.make_ca(now=START, life=timedelta(days=9))
    leaf = authority.make_leaf(ca, names=frozenset({"webhook.svc"}), now=START, life=timedelta(days=3))
    return SecretData(leaf=leaf, ca=ca)


FIRST, SECOND = contents(), contents()


def versions(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.name.startswith("..v-")}


def test_files_are_written_once_and_only_if_different(tmp_path: Path) -> None:
    files = FileStore(tmp_path / "new" / "certs")
    assert [files.save(each) for each in (FIRST, FIRST, SECOND)] == [True, False, True]
    assert files.load().leaf.certificate == (files.directory / "tls.crt").read_bytes() == SECOND.leaf.certificate
    assert files.load().bundle == SECOND.bundle
    assert files.save(FIRST)  # whose version is still there
    assert files.load().leaf.key == FIRST.leaf.key
    FileStore(tmp_path).save(FIRST)
    assert (tmp_path / "tls.key").stat().st_mode & 0o777 == 0o600
    assert not any(FIRST.ca.key in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_reader_that_resolved_its_version_keeps_a_fitting_pair(tmp_path: Path) -> None:
    files = FileStore(tmp_path)
    files.save(FIRST)
    certificate, key = pair_paths(tmp_path)
    files.save(SECOND)
    assert certificate.read_bytes() == FIRST.leaf.certificate
    assert key.read_bytes() == FIRST.leaf.key
    assert verifies(tmp_path, SECOND.bundle, server="webhook.svc")


def test_old_versions_and_left_overs_are_cleared_away(tmp_path: Path) -> None:
    files = FileStore(tmp_path)
    (tmp_path / "..new-crashed").mkdir()
    (tmp_path / "..link-data").symlink_to("nowhere")
    used = list[str]()
    for time, each in enumerate((FIRST, SECOND, contents(), contents())):
        files.save(each)
        used.append((tmp_path / "..data").resolve().name)
        os.utime(tmp_path / used[-1], (time, time))
    assert versions(tmp_path) == set(used[-2:])
    assert not list(tmp_path.glob("..new-*"))


def test_plain_files_of_somebody_else_are_replaced(tmp_path: Path) -> None:
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).write_text("garbage")
    assert pair_paths(tmp_path) == (tmp_path / "tls.crt", tmp_path / "tls.key")
    FileStore(tmp_path).save(FIRST)
    assert verifies(tmp_path, FIRST.bundle, server="webhook.svc")


def test_an_interrupted_write_leaves_the_old_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FileStore(tmp_path)
    files.save(FIRST)

    def full(_descriptor: int) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space left"):
            files.save(SECOND)
    assert verifies(tmp_path, FIRST.bundle, server="webhook.svc")
    files.save(SECOND)
    assert verifies(tmp_path, SECOND.bundle, server="webhook.svc")
    assert not list(tmp_path.glob("..new-*"))
