"""A cluster in memory with a clock that tests turn, managers as replicas, and TLS handshakes without a socket."""

import base64
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from certs import manager as manager_certs, store
from certs.manager import CertificateManager
from certs.settings import CertSettings
from certs.store import SecretData
from gpushare import names
from gpushare.kube.api import JsonObject
from testing.clock import ManualClock
from testing.fakes.kube import FakeKube, Fault

START = datetime.now(UTC).replace(microsecond=0)  # handshakes are verified at the machine's time
DAY_S = 86400.0
SECRETS = f"/api/v1/namespaces/{names.NAMESPACE}/secrets"
SECRET = f"{SECRETS}/{names.WEBHOOK_SECRET}"
SERVER = f"{names.WEBHOOK_SERVICE}.{names.NAMESPACE}.svc"
MUTATING, VALIDATING = manager_certs.CONFIGURATIONS
SHORT: dict[str, Any] = {"cert_check_s": 5.0, "cert_propagation_s": 60.0, "cert_retire_s": 120.0}


@dataclass
class World:
    """One cluster; each replica has a directory of its own."""

    root: Path
    api: FakeKube = field(default_factory=FakeKube)
    clock: ManualClock = field(default_factory=lambda: ManualClock(0, began=START))

    def __post_init__(self) -> None:
        for path in (MUTATING, VALIDATING):
            self.configure(path)

    def configure(self, path: str) -> None:
        """Create a webhook configuration as the manifests do: without a bundle."""
        service = {"name": names.WEBHOOK_SERVICE, "namespace": names.NAMESPACE}
        hooks = [{"name": f"{each}.gpushare.dev", "clientConfig": {"service": service}} for each in ("gpu", "other")]
        name = path.rpartition("/")[2]
        self.api.seed(path.rpartition("/")[0], {"metadata": {"name": name}, "webhooks": hooks})

    def replica(self, name: str = "a", **settings: object) -> CertificateManager:
        chosen = CertSettings(**{"cert_dir": str(self.root / name), **SHORT, **settings})
        return CertificateManager(api=self.api, clock=self.clock, settings=chosen)

    def looked(self, name: str = "a", **settings: object) -> CertificateManager:
        """A replica that has looked once."""
        made = self.replica(name, **settings)
        made.ensure_once()
        return made

    def pass_s(self, seconds: float) -> None:
        self.clock.at += seconds

    def live(self, *managers: CertificateManager, seconds: int = 400) -> None:
        """Replicas look every 5 s."""
        for _ in range(seconds // 5):
            self.pass_s(5)
            for manager in managers:
                manager.ensure_once()

    def secret(self) -> SecretData:
        return store.from_secret(self.api.read(SECRET))

    def corrupt(self, **values: str | None) -> None:
        """Set keys of the Secret's data to raw text (dots as underscores); None removes them."""

        def change(secret: JsonObject) -> None:
            for key, value in values.items():
                secret["data"].pop(key.replace("_", "."), None)
                if value is not None:
                    secret["data"][key.replace("_", ".")] = value

        self.api.edit(SECRET, change)

    def ask_rotation(self, value: str) -> None:
        self.api.edit(
            SECRET,
            lambda secret: secret["metadata"].setdefault("annotations", {}).update({store.ROTATE_ANNOTATION: value}),
        )

    def fail(self, verb: str, path: str, fault: Fault, times: int = 1) -> None:
        """The next calls of this kind; an empty verb or a part of a path stands for all that have it."""
        self.api.fail_next(lambda call: verb in call.verb and path in call.path, fault, times=times)

    def verify(self, replica: str = "a") -> bool:
        """Whether every API server verifies this replica."""
        return all(verifies(self.root / replica, bundle) for bundle in self.bundles())

    def bundles(self) -> list[bytes]:
        """The CA bundle of every webhook of both configurations."""
        hooks = [hook for path in (MUTATING, VALIDATING) for hook in self.api.read(path)["webhooks"]]
        assert hooks
        return [base64.b64decode(hook["clientConfig"].get("caBundle", "")) for hook in hooks]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def verifies(directory: Path | str, bundle: bytes, *, server: str = SERVER) -> bool:
    """Whether a client that trusts `bundle` completes a TLS handshake with a server of these files."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*store.pair_paths(Path(directory)))
    calling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    calling.verify_flags |= ssl.VERIFY_X509_STRICT
    calling.load_verify_locations(cadata=bundle.decode())
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = calling.wrap_bio(down, up, server_hostname=server)
    host = serving.wrap_bio(up, down, server_side=True)
    pending = [client.do_handshake, host.do_handshake]
    while pending:
        step = pending.pop(0)
        try:
            step()
        except ssl.SSLWantReadError:
            pending.append(step)
        except ssl.SSLCertVerificationError:
            return False
    return True
