"""Keeps the webhook's certificates: gather, decide (`rotation`), apply; the same in every replica, without a leader."""

import base64
import copy
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from certs import authority, rotation, store
from certs.rotation import Phase, SecretState, Step
from certs.settings import FILES, CertSettings
from certs.store import FileStore, SecretData
from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock

_LOG: Final = logging.getLogger(__name__)
DAY_S: Final = 86400.0
_BUSY_S: Final = 2.0
_ROUNDS: Final = 20  # a few are needed; more mean that others write all the time
_GROUP: Final = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS: Final = (
    f"{_GROUP}/mutatingwebhookconfigurations/{names.MUTATING_WEBHOOK}",
    f"{_GROUP}/validatingwebhookconfigurations/{names.VALIDATING_WEBHOOK}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    path: str
    body: JsonObject | None  # None if there is none: then no admission depends on its bundle
    readable: bool = True  # False if the API server did not say what it holds

    def has(self, bundle: bytes) -> bool:
        encoded = base64.b64encode(bundle).decode()
        return self.readable and all(each["clientConfig"].get("caBundle") == encoded for each in self._webhooks())

    def authorities(self) -> Iterator[bytes]:
        """The CA certificates, PEM, that API servers may verify with now."""
        for webhook in self._webhooks():
            yield from authority.split(store.decode(webhook["clientConfig"].get("caBundle") or ""))

    def with_bundle(self, bundle: bytes) -> JsonObject:
        body = copy.deepcopy(self.body or {})
        for webhook in body.get("webhooks") or []:
            webhook["clientConfig"]["caBundle"] = base64.b64encode(bundle).decode()
        return body

    def _webhooks(self) -> list[JsonObject]:
        return (self.body or {}).get("webhooks") or []


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    state: SecretState
    in_configurations: bool  # whether both webhook configurations have the bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathered:
    configurations: tuple[Configuration, ...]
    secret: JsonObject | None
    contents: SecretData
    served: SecretData

    @property
    def in_configurations(self) -> bool:
        return all(configuration.has(self.contents.bundle) for configuration in self.configurations)


@dataclass(kw_only=True)
class CertificateManager:
    """Creates, rotates and installs the certificates. For one thread of each replica."""

    api: KubeApi
    clock: Clock
    settings: CertSettings = field(default_factory=CertSettings)
    status: Status | None = field(init=False, default=None)  # what the last look found; None before the first

    def leaf_left_s(self) -> float:
        """Seconds until the served leaf expires; negative if it has; not a number if none was seen yet."""
        return self._left_s(self.status.state.leaf.expires if self.status else None)

    def ca_left_s(self) -> float:
        return self._left_s(self.status.state.ca.expires if self.status else None)

    def _left_s(self, expires: datetime | None) -> float:
        return (expires - self.clock.now()).total_seconds() if expires else float("nan")

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
                settled = status.state.phase is Phase.STEADY and status.in_configurations
                delay = self.settings.cert_check_s if settled else min(_BUSY_S, self.settings.cert_check_s)
            self.clock.wait(stop, delay)

    def ensure_once(self) -> Status:
        """Do everything that can be done now; idempotent. Raises KubeError of the Secret, OSError of the files."""
        if self.settings.cert_source == FILES:
            return self._look_at_files()
        for _ in range(_ROUNDS):
            gathered = self._gather()
            if self._serves(gathered.contents) and self._files.save(gathered.contents):
                logs.event(_LOG, "certificate files written", directory=self.settings.cert_dir)
            step = rotation.decide(
                store.state(gathered.contents) if gathered.secret is not None else None,
                self.settings.plan,
                self.clock.now(),
                in_configurations=gathered.in_configurations,
                adoptable=self._serves(gathered.served),
            )
            if step is not None:
                self._apply(step, gathered)
            elif not self._write_bundle(gathered):
                return self._report(gathered.contents, in_configurations=gathered.in_configurations)
        raise kube.ConflictError(
            f"the Secret {names.WEBHOOK_SECRET} or a webhook configuration is changed all the time"
        )

    @property
    def _secrets(self) -> str:
        return f"/api/v1/namespaces/{self.settings.namespace}/secrets"

    @property
    def _files(self) -> FileStore:
        return FileStore(Path(self.settings.cert_dir))

    def _gather(self) -> _Gathered:
        # Before the Secret: then a write, which their resourceVersion guards, can never replace a newer bundle by one
        # of an older Secret.
        configurations = tuple(map(self._configuration, CONFIGURATIONS))
        try:
            secret = self.api.get(f"{self._secrets}/{names.WEBHOOK_SECRET}")
        except kube.NotFoundError:
            secret = None
        return _Gathered(
            configurations=configurations,
            secret=secret,
            contents=store.from_secret(secret) if secret is not None else SecretData(),
            served=self._files.load(),
        )

    def _configuration(self, path: str) -> Configuration:
        try:
            return Configuration(path=path, body=self.api.get(path))
        except kube.NotFoundError:
            logs.event(_LOG, "webhook configuration missing", level=logging.WARNING, path=path)
            return Configuration(path=path, body=None)
        except kube.KubeError as error:
            logs.event(_LOG, "webhook configuration unreadable", level=logging.WARNING, path=path, error=str(error))
            return Configuration(path=path, body=None, readable=False)

    def _serves(self, candidate: SecretData) -> bool:
        """Whether the leaf is one that verifiers accept who trust its CA."""
        ca, leaf = rotation.judge(store.state(candidate), self.settings.plan, self.clock.now())
        return not leaf.unusable and not ca.expired

    def _apply(self, step: Step, gathered: _Gathered) -> None:
        known = dict.fromkeys(pem for each in gathered.configurations for pem in each.authorities())
        wanted = store.after(
            step.action,
            gathered.contents,
            self.settings.plan,
            served=gathered.served,
            known=tuple(known),
            now=self.clock.now(),
        )
        metadata = {"name": names.WEBHOOK_SECRET, "namespace": self.settings.namespace}
        empty = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata}
        body = store.into_secret(wanted, gathered.secret or empty)
        try:
            if gathered.secret is None:
                self.api.create(self._secrets, body)
            else:
                self.api.replace(f"{self._secrets}/{names.WEBHOOK_SECRET}", body)
        except (kube.ConflictError, kube.NotFoundError):
            return  # another replica was first, or the Secret was deleted: look again
        logs.event(_LOG, "certificates changed", step=step.action.value, reason=step.reason)

    def _write_bundle(self, gathered: _Gathered) -> bool:
        """Put the bundle where it is not. Whether anything was written; what fails is logged and tried again later."""
        written, bundle = False, gathered.contents.bundle
        for configuration in gathered.configurations:
            if configuration.body is None or configuration.has(bundle):
                continue
            path = configuration.path
            try:
                self.api.replace(path, configuration.with_bundle(bundle))
            except (kube.ConflictError, kube.NotFoundError):
                written = True  # somebody changed it: look again
            except kube.KubeError as error:
                logs.event(_LOG, "bundle not written", level=logging.WARNING, path=path, error=str(error))
            else:
                written = True
                logs.event(_LOG, "bundle written", path=path)
        return written

    def _look_at_files(self) -> Status:
        status = self._report(replace(self._files.load(), others=()), in_configurations=True)  # others retire CAs
        days = self.leaf_left_s() / DAY_S
        if not days >= 1:  # also of none at all
            logs.event(
                _LOG, "certificate files old", level=logging.WARNING, directory=self.settings.cert_dir, days=days
            )
        return status

    def _report(self, present: SecretData, *, in_configurations: bool) -> Status:
        self.status = Status(state=store.state(present), in_configurations=in_configurations)
        return self.status
