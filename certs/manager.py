"""Keeps the webhook's certificates: gather, decide (`rotation`), apply; the same in every replica, without a leader."""

import logging
import threading
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from certs import contents, inject, rotation
from certs.contents import Contents
from certs.inject import Configuration
from certs.rotation import Phase, Seen, Step
from certs.settings import FILES, CertSettings
from certs.store import FileStore, SecretStore
from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock

_LOG: Final = logging.getLogger(__name__)
_BUSY_S: Final = 2.0
_ROUNDS: Final = 20  # a few are needed; more mean that others write all the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """For people and metrics."""

    phase: Phase
    leaf_expires: datetime | None
    """None if there is no readable leaf."""
    ca_expires: datetime | None
    carried: bool
    """Whether both webhook configurations have the bundle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathered:
    configurations: tuple[Configuration, ...]
    secret: JsonObject | None
    contents: Contents
    served: Contents

    @property
    def carried(self) -> bool:
        return all(configuration.carries(self.contents.bundle) for configuration in self.configurations)


@dataclass(kw_only=True)
class CertificateManager:
    """Creates, rotates and installs the certificates. For one thread of each replica."""

    api: KubeApi
    clock: Clock
    settings: CertSettings = field(default_factory=CertSettings)
    status: Status | None = field(init=False, default=None)
    """What the last look found; None before the first."""

    def leaf_left_s(self) -> float | None:
        """Seconds until the served leaf expires; negative if it has; None if none was seen yet."""
        return self._left_s(self.status.leaf_expires if self.status else None)

    def ca_left_s(self) -> float | None:
        """As `leaf_left_s`, of the CA."""
        return self._left_s(self.status.ca_expires if self.status else None)

    def days_left(self) -> float | None:
        """As `leaf_left_s`, in days."""
        seconds = self.leaf_left_s()
        return None if seconds is None else seconds / 86400

    def _left_s(self, expires: datetime | None) -> float | None:
        return None if expires is None else (expires - self.clock.now()).total_seconds()

    def run(self, stop: threading.Event) -> None:
        """Look, fix, wait, until `stop` is set. Never raises."""
        backoff = Backoff(first_s=0.5, cap_s=max(0.5, min(10.0, self.settings.cert_check_s)))
        while not stop.is_set():
            try:
                status = self.ensure_once()
            except (kube.KubeError, OSError) as error:
                delay = backoff.next_s()
                logs.event(_LOG, "certificates not checked", level=logging.WARNING, error=str(error), retry_s=delay)
            except Exception:  # noqa: BLE001 - the top of a loop that must outlive everything
                delay = backoff.next_s()
                logs.event(_LOG, "certificates not checked", level=logging.ERROR, exc_info=True, retry_s=delay)
            else:
                backoff.reset()
                settled = status.phase is Phase.STEADY and status.carried
                delay = self.settings.cert_check_s if settled else min(_BUSY_S, self.settings.cert_check_s)
            self.clock.wait(stop, delay)

    def ensure_once(self) -> Status:
        """Do everything that can be done now; idempotent.

        Raises:
            KubeError: the Secret cannot be read or written.
            OSError: the files cannot be written.
        """
        if self.settings.cert_source == FILES:
            return self._look_at_files()
        for _ in range(_ROUNDS):
            gathered = self._gather()
            self._install(gathered)
            step = self._decide(gathered)
            if step is not None:
                self._apply(step, gathered)
            elif not inject.write(self.api, gathered.configurations, gathered.contents.bundle):
                return self._report(gathered.contents, carried=gathered.carried)
        raise kube.ConflictError(f"the Secret {self._secret.name} or a webhook configuration is changed all the time")

    @property
    def _secret(self) -> SecretStore:
        return SecretStore(api=self.api, namespace=self.settings.namespace, name=names.WEBHOOK_SECRET)

    @property
    def _files(self) -> FileStore:
        return FileStore(Path(self.settings.cert_dir))

    def _gather(self) -> _Gathered:
        configurations = inject.read(self.api)
        secret = self._secret.load()
        return _Gathered(
            configurations=configurations,
            secret=secret,
            contents=contents.from_secret(secret) if secret is not None else Contents(),
            served=self._files.load(),
        )

    def _install(self, gathered: _Gathered) -> None:
        """Write the Secret's leaf into the files, unless it is worse than what they hold."""
        if self._serves(gathered.contents) and self._files.save(gathered.contents):
            logs.event(_LOG, "certificate files written", directory=self.settings.cert_dir)

    def _decide(self, gathered: _Gathered) -> Step | None:
        seen = Seen(
            material=contents.material(gathered.contents) if gathered.secret is not None else None,
            carried=gathered.carried,
            adoptable=self._serves(gathered.served),
        )
        return rotation.decide(seen, self.settings.plan, self.clock.now())

    def _serves(self, candidate: Contents) -> bool:
        """Whether the leaf is one that verifiers accept who trust its CA."""
        ca, leaf = rotation.judge(contents.material(candidate), self.settings.plan, self.clock.now())
        return not (leaf is not None and leaf.urgent) and not rotation.ca_expired(ca)

    def _apply(self, step: Step, gathered: _Gathered) -> None:
        known = dict.fromkeys(pem for each in gathered.configurations for pem in each.authorities())
        wanted = contents.after(
            step.action,
            gathered.contents,
            self.settings.plan,
            served=gathered.served,
            known=tuple(known),
            now=self.clock.now(),
        )
        try:
            self._secret.save(wanted, gathered.secret)
        except (kube.ConflictError, kube.NotFoundError):
            return  # another replica was first, or the Secret was deleted: look again
        logs.event(_LOG, "certificates changed", step=step.action.value, reason=step.reason)

    def _look_at_files(self) -> Status:
        status = self._report(self._files.load(), carried=True)
        days = self.days_left()
        if days is None or days < 1:
            directory = self.settings.cert_dir
            logs.event(_LOG, "certificate files old", level=logging.WARNING, directory=directory, days=days)
        return status

    def _report(self, present: Contents, *, carried: bool) -> Status:
        seen = contents.material(present)
        status = Status(
            phase=seen.phase if self.settings.cert_source != FILES else Phase.STEADY,
            leaf_expires=seen.leaf.expires,
            ca_expires=seen.ca.expires,
            carried=carried,
        )
        self.status = status
        return status
