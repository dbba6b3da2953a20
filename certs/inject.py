"""The CA bundle in the webhook configurations: read it back, and write it where it differs."""

import base64
import binascii
import copy
import logging
from dataclasses import dataclass
from typing import Final

from certs import authority
from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)
_GROUP: Final = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS: Final = (
    f"{_GROUP}/mutatingwebhookconfigurations/{names.MUTATING_WEBHOOK}",
    f"{_GROUP}/validatingwebhookconfigurations/{names.VALIDATING_WEBHOOK}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A webhook configuration as read."""

    path: str
    body: JsonObject | None
    """None if there is none: then no admission depends on its bundle."""
    readable: bool = True
    """False if the API server did not say what it holds."""

    def carries(self, bundle: bytes) -> bool:
        """Whether every webhook in it has exactly this bundle."""
        encoded = base64.b64encode(bundle).decode()
        return self.readable and all(each["clientConfig"].get("caBundle") == encoded for each in self._webhooks())

    def authorities(self) -> tuple[bytes, ...]:
        """The CA certificates, PEM, that API servers may verify with now."""
        cas: dict[bytes, None] = {}
        for webhook in self._webhooks():
            try:
                bundle = base64.b64decode(webhook["clientConfig"].get("caBundle") or "")
            except binascii.Error:
                continue
            cas.update(dict.fromkeys(authority.split(bundle)))
        return tuple(cas)

    def with_bundle(self, bundle: bytes) -> JsonObject:
        """A copy with the bundle in every webhook."""
        body = copy.deepcopy(self.body or {})
        for webhook in body.get("webhooks") or []:
            webhook["clientConfig"]["caBundle"] = base64.b64encode(bundle).decode()
        return body

    def _webhooks(self) -> list[JsonObject]:
        return (self.body or {}).get("webhooks") or []


def read(api: KubeApi) -> tuple[Configuration, ...]:
    """Both configurations.

    Read them before the Secret: then a write, which their resourceVersion guards, can never replace a newer bundle by
    one of an older Secret.
    """
    return tuple(_read(api, path) for path in CONFIGURATIONS)


def write(api: KubeApi, configurations: tuple[Configuration, ...], bundle: bytes) -> bool:
    """Put the bundle where it is not. Whether anything was written; what fails is logged and tried again later."""
    written = False
    for configuration in configurations:
        if configuration.body is None or configuration.carries(bundle):
            continue
        path = configuration.path
        try:
            api.replace(path, configuration.with_bundle(bundle))
        except (kube.ConflictError, kube.NotFoundError):
            written = True  # somebody changed it: look again
        except kube.KubeError as error:
            logs.event(_LOG, "bundle not written", level=logging.WARNING, path=path, error=str(error))
        else:
            written = True
            logs.event(_LOG, "bundle written", path=path)
    return written


def _read(api: KubeApi, path: str) -> Configuration:
    try:
        return Configuration(path=path, body=api.get(path))
    except kube.NotFoundError:
        logs.event(_LOG, "webhook configuration missing", level=logging.WARNING, path=path)
        return Configuration(path=path, body=None)
    except kube.KubeError as error:
        logs.event(_LOG, "webhook configuration unreadable", level=logging.WARNING, path=path, error=str(error))
        return Configuration(path=path, body=None, readable=False)
