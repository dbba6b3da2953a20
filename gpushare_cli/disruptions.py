"""Reads the cluster's PodDisruptionBudgets."""

from collections.abc import Sequence
from typing import Final

from gpushare.cluster import budgets
from gpushare.cluster.budgets import Budget
from gpushare.errors import WireError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare_cli import gather

PATHS: Final = ("/apis/policy/v1/poddisruptionbudgets", "/apis/policy/v1beta1/poddisruptionbudgets")
"""The first from Kubernetes 1.21 on."""


def read(api: KubeApi) -> tuple[Sequence[Budget], str]:
    """All budgets, and what keeps the answer from being complete.

    A server that does not show them obeys them all the same.
    """
    for path in PATHS:
        try:
            objects = gather.listed(api, path, {})
        except kube.NotFoundError:
            continue
        except kube.KubeError as error:
            return (), f"PodDisruptionBudgets cannot be read ({error}); the API server obeys them all the same"
        found: list[Budget] = []
        unread = []
        for each in objects:
            try:
                found.append(budgets.parse(each, empty_is_all=path == PATHS[0]))
            except WireError as error:
                unread.append(str(error))
        return found, f"a PodDisruptionBudget cannot be read: {unread[0]}" if unread else ""
    return (), ""
