"""The cluster's certificate authority, and kubeconfig files made with it.

One authority signs everything. Keys are elliptic, for RSA keys alone would cost seconds of the start.
"""

import base64
import dataclasses
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from certs import authority

LIFETIME: Final = timedelta(days=30)


@dataclasses.dataclass(frozen=True)
class KeyPair:
    """Paths of a certificate and its private key, both PEM."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._ca = authority.make_ca(now=datetime.now(UTC), life=LIFETIME, common_name=name)
        self.pair = self._write("ca", self._ca)

    @property
    def certificate(self) -> Path:
        """The path of the authority's certificate."""
        return self.pair.certificate

    def issue(
        self, file_name: str, common_name: str, *, organization: str = "", subjects: Sequence[str] = ()
    ) -> KeyPair:
        """Write a certificate for client and server use.

        Args:
            file_name: Stem of the two files.
            common_name: The user name, where Kubernetes reads the certificate of a client.
            organization: The user's group.
            subjects: Host names and IP addresses of a server.
        """
        leaf = authority.make_leaf(
            self._ca,
            names=frozenset(subjects),
            now=datetime.now(UTC),
            life=LIFETIME,
            subject=(common_name, organization),
            uses=authority.SERVER_AND_CLIENT,
        )
        return self._write(file_name, leaf)

    def kubeconfig(self, path: Path, server: str, user: KeyPair) -> Path:
        """Write a self-contained kubeconfig, as JSON, which every YAML reader accepts."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [
                {"name": "test", "cluster": {"server": server, "certificate-authority-data": _base64(self.certificate)}}
            ],
            "users": [
                {
                    "name": "test",
                    "user": {
                        "client-certificate-data": _base64(user.certificate),
                        "client-key-data": _base64(user.key),
                    },
                }
            ],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(document, indent=1))
        return path

    def _write(self, stem: str, made: authority.KeyPair) -> KeyPair:
        pair = KeyPair(self._directory / f"{stem}.crt", self._directory / f"{stem}.key")
        pair.certificate.write_bytes(made.certificate)
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(made.key)
        return pair


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
