"""Makes and reads certificates and keys. The only module that uses `cryptography`."""

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.rotation import Facts, Unreadable

E = TypeVar("E", bound=x509.ExtensionType)
_BACKDATE: Final = timedelta(hours=1)
_PEM: Final = serialization.Encoding.PEM
_DER: Final = serialization.Encoding.DER
SERVER: Final = (ExtendedKeyUsageOID.SERVER_AUTH,)
SERVER_AND_CLIENT: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True, slots=True, repr=False)
class KeyPair:
    """A certificate and its private key, PEM. Without a repr, so that no log can show the key."""

    certificate: bytes
    key: bytes


def make_ca(*, now: datetime, life: timedelta, common_name: str = "gpushare-webhook-ca") -> KeyPair:
    """A self-signed CA that may sign leaves only.

    Its subject is made unique, so that verifiers that look issuers up by name never try the wrong one of two CAs.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    subject = _name(f"{common_name}-{serial:040x}"[:60])
    builder = _builder(serial, now, now + life, is_ca=True).subject_name(subject).issuer_name(subject)
    return _signed(builder, key, key)


def make_leaf(
    ca: KeyPair,
    *,
    names: frozenset[str],
    now: datetime,
    life: timedelta,
    subject: tuple[str, str] = ("gpushare-webhook", ""),
    uses: Sequence[x509.ObjectIdentifier] = SERVER,
) -> KeyPair:
    """A certificate for DNS names and IP addresses, of which a client has none; it never outlives its CA.

    Its subject is a common name and an organization, which the API server takes for a client's user and group. Raises
    ValueError or TypeError: the CA cannot sign; check it by `certs.rotation` first.
    """
    issuer = x509.load_pem_x509_certificate(ca.certificate)
    signer = serialization.load_pem_private_key(ca.key, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise TypeError("the CA's key is neither an elliptic-curve nor an RSA key")
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + life, issuer.not_valid_after_utc)
    builder = (
        _builder(x509.random_serial_number(), now, end, is_ca=False)
        .subject_name(_name(*subject))
        .issuer_name(issuer.subject)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    )
    if names:
        alternatives = x509.SubjectAlternativeName([_alternative(name) for name in sorted(names)])
        builder = builder.add_extension(alternatives, critical=False)
    return _signed(builder, key, signer)


def split(bundle: bytes) -> tuple[bytes, ...]:
    """The CA certificates of a PEM bundle, each as PEM; empty if the bundle cannot be read."""
    try:
        certificates = x509.load_pem_x509_certificates(bundle)
        constraints = ((each, _extension(each, x509.BasicConstraints)) for each in certificates)
        return tuple(each.public_bytes(_PEM) for each, found in constraints if found and found.ca)
    except (ValueError, UnsupportedAlgorithm):
        return ()


def read_certificate(pem: bytes, issuers: Sequence[bytes] = ()) -> Facts | Unreadable | None:
    """Facts of the first certificate in `pem`, which one of the issuers may have signed; None if there is nothing."""
    if not pem.strip():
        return None
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = _extension(certificate, x509.SubjectAlternativeName) or ()
        return Facts(
            fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
            key=_key_fingerprint(certificate.public_key()),
            issuer=_issuer(certificate, issuers),
            names=frozenset(str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)),
            not_before=certificate.not_valid_before_utc,
            not_after=certificate.not_valid_after_utc,
        )
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension):
        return Unreadable("is no PEM certificate")


def read_ca(pem: bytes) -> Facts | Unreadable | None:
    """Facts of a CA certificate; one that may not sign is unreadable as such."""
    facts = read_certificate(pem, (pem,))
    if isinstance(facts, Facts) and not split(pem):
        return Unreadable("may not sign: basicConstraints do not say CA")
    return facts


def read_key(pem: bytes) -> str | Unreadable | None:
    """Fingerprint of a private key's public half; None if there is nothing."""
    if not pem.strip():
        return None
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return Unreadable("is no PEM private key without a password")
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        return Unreadable("is neither an elliptic-curve nor an RSA key")
    return _key_fingerprint(key.public_key())


def _issuer(certificate: x509.Certificate, issuers: Sequence[bytes]) -> str | None:
    for pem in issuers:
        try:
            issuer = x509.load_pem_x509_certificate(pem)
            certificate.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            continue
        return issuer.fingerprint(hashes.SHA256()).hex()
    return None


def _extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _builder(serial: int, now: datetime, end: datetime, *, is_ca: bool) -> x509.CertificateBuilder:
    backdate = min(_BACKDATE, (end - now) / 10)  # verifiers' clocks may be behind; of short lives it is a small part
    builder = x509.CertificateBuilder().serial_number(serial).not_valid_before(now - backdate).not_valid_after(end)
    constraints = x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None)
    usage = x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return builder.add_extension(constraints, critical=True).add_extension(usage, critical=True)


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
) -> KeyPair:
    certificate = (
        builder.public_key(key.public_key())
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    pem = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(certificate.public_bytes(_PEM), pem)


def _name(common_name: str, organization: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_fingerprint(key: CertificatePublicKeyTypes | PublicKeyTypes) -> str:
    encoded = key.public_bytes(_DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).hexdigest()
