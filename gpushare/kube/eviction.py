"""Evicts a pod through the API server, which respects PodDisruptionBudgets."""

from enum import Enum
from typing import Final

from gpushare.identity import PodRef
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi

_TIMEOUT_S: Final = 5.0
_VERSIONS: Final = ("policy/v1", "policy/v1beta1")
"""The first from Kubernetes 1.22 on, which answers 400 before."""


class Evicted(Enum):
    """What became of it."""

    DONE = "done"
    GONE = "gone"
    """There is no such pod any more."""
    REFUSED = "refused"
    """A PodDisruptionBudget protects it for now."""
    FAILED = "failed"


def evict(api: KubeApi, pod: PodRef, *, if_forbidden: str = "") -> tuple[Evicted, str]:
    """Have exactly this pod deleted. The outcome, and why it is not done.

    Args:
        api: where.
        pod: which; one of the same name with another UID is left alone.
        if_forbidden: what to do if the right is missing, for the message.
    """
    try:
        ask(api, pod)
    except (kube.NotFoundError, kube.ConflictError) as error:
        return Evicted.GONE, str(error)
    except kube.TooManyRequestsError as error:
        return Evicted.REFUSED, str(error)
    except kube.ForbiddenError as error:
        return Evicted.FAILED, f"{error}; {if_forbidden}" if if_forbidden else str(error)
    except kube.KubeError as error:
        return Evicted.FAILED, str(error)
    return Evicted.DONE, ""


def ask(api: KubeApi, pod: PodRef) -> None:
    """Have exactly this pod deleted. Asking again after a lost reply does no harm.

    Raises:
        NotFoundError: it is gone.
        ConflictError: one of its name with another UID is there.
        TooManyRequestsError: a PodDisruptionBudget protects it for now.
        KubeError: anything else.
    """
    path = kube.pod_path(pod.namespace, pod.name, "eviction")
    body = {
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
    newest, oldest = _VERSIONS
    try:
        api.create(path, {"apiVersion": newest, **body}, timeout_s=_TIMEOUT_S)
    except kube.BadRequestError as error:
        try:
            api.create(path, {"apiVersion": oldest, **body}, timeout_s=_TIMEOUT_S)
        except kube.BadRequestError as other:
            raise kube.BadRequestError(f"{error}; in version {oldest}: {other}") from other
