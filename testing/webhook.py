"""The webhook as a process of its own, whose API server is out of reach."""

import contextlib
import http.client
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from certs import authority
from certs.authority import KeyPair
from certs.store import FileStore, SecretData
from testing.fakes import kube_http
from testing.fakes.http_server import free_port

ROOT = Path(__file__).parents[1]


def authority_and_leaf() -> tuple[KeyPair, KeyPair]:
    """A CA, and a leaf of it for localhost."""
    now = datetime.now(UTC)
    ca = authority.make_ca(now=now, life=timedelta(days=2))
    return ca, authority.make_leaf(ca, names=frozenset({"localhost"}), now=now, life=timedelta(days=1))


@dataclass
class Server:
    """With certificates that the test makes."""

    process: subprocess.Popen[str]
    port: int
    directory: Path
    authorities: str = ""

    def install(self, known: Callable[[], object] = lambda: None) -> bytes:
        """Replace the certificate by one of a new CA; the leaf, PEM. `known` returns when all clients know the CA."""
        ca, leaf = authority_and_leaf()
        self.authorities += ca.certificate.decode()
        known()
        FileStore(self.directory).save(SecretData(leaf=leaf, ca=KeyPair(ca.certificate, b"")))
        return leaf.certificate

    def connect(self, timeout_s: float = 10.0) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cadata=self.authorities)
        return http.client.HTTPSConnection("localhost", self.port, timeout=timeout_s, context=context)

    def ready(self) -> bool:
        with contextlib.closing(self.connect(1.0)) as connection, contextlib.suppress(OSError):
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        return False


def command(directory: Path, port: int, *more: str) -> list[str]:
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(kube_http.kubeconfig("http://127.0.0.1:9"))
    options = {
        "--address": "127.0.0.1",
        "--port": str(port),
        "--cert-source": "files",
        "--cert-dir": str(directory / "certs"),
        "--kubeconfig": str(kubeconfig),
        "--worker-tmp-dir": str(directory),
        "--runtime-class-mode": "always",  # there is no one to ask
    }
    return [sys.executable, "-m", "webhook", *(part for pair in options.items() for part in pair), *more]


@contextlib.contextmanager
def running(directory: Path, *, enter: Callable[[list[str]], list[str]] = list) -> Iterator[Server]:
    """Args: enter: makes the command line that starts the given one where it shall run."""
    port = free_port()
    log = directory / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(enter(command(directory, port)), cwd=ROOT, stderr=stderr, text=True)
    made = Server(process, port, directory / "certs")
    made.install()
    try:
        deadline = time.monotonic() + 250
        while not made.ready():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield made
    finally:
        process.kill()
        process.wait()
        assert "Traceback" not in log.read_text(), log.read_text()
