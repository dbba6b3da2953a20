"""Policies of namespaces, by their label. Without the right to read them, those of pods and of the cluster count."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from controller.optional import OptionalWatch
from gpushare import names
from gpushare.errors import WireError
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.model.request import Policy
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import fields, selectors

_LOG: Final = logging.getLogger(__name__)
PATH: Final = "/api/v1/namespaces"


@dataclass(slots=True)
class NamespacePolicies:
    """Policies by namespace. Safe for use by many threads: one thread replaces the mapping, and changes none."""

    by_namespace: Mapping[str, Policy] = field(default_factory=dict)

    def of(self, namespace: str) -> Policy | None:
        """None if the namespace names none."""
        return self.by_namespace.get(namespace)


class Read(NamedTuple):
    """What was read of a namespace."""

    namespace: str
    policy: Policy | None
    """None if its label names no policy."""


@dataclass(frozen=True, slots=True)
class NamespaceSink:
    """Sink of the watch of namespaces that have the label."""

    policies: NamespacePolicies

    def read(self, namespace: JsonObject) -> Read | None:
        """The policy of a namespace, also if there is none of that name; None if it is no namespace."""
        try:
            metadata = fields.mapping(namespace, "metadata", "namespace")
            name, labels = fields.text(metadata, "name", "metadata"), fields.mapping(metadata, "labels", "metadata")
        except WireError as error:
            logs.event(_LOG, "object left out", level=logging.ERROR, kind="namespace", error=str(error))
            return None
        try:
            return Read(name, selectors.parse_policy(str(labels.get(names.LABEL_POLICY, ""))))
        except ValueError as error:
            logs.event(_LOG, "label has no effect", level=logging.WARNING, namespace=name, error=str(error))
            return Read(name, None)

    def replace(self, found: list[Read]) -> None:
        """Keep the policies of these namespaces and no others."""
        self.policies.by_namespace = {each.namespace: each.policy for each in found if each.policy is not None}

    def upsert(self, found: Read) -> None:
        """Keep the policy of a namespace that was added or changed, or forget it if it has none any more."""
        self.remove(found)
        if found.policy is not None:
            self.policies.by_namespace = {**self.policies.by_namespace, found.namespace: found.policy}

    def remove(self, found: Read) -> None:
        """Forget a namespace that is gone, or has lost the label."""
        kept = self.policies.by_namespace
        self.policies.by_namespace = {name: policy for name, policy in kept.items() if name != found.namespace}


def watch(*, api: KubeApi, clock: Clock, known: NamespacePolicies) -> OptionalWatch:
    """Keeps the policies up to date."""
    return OptionalWatch(
        api=api,
        clock=clock,
        paths=(PATH,),
        params={"labelSelector": names.LABEL_POLICY},
        sink=lambda _path: NamespaceSink(known),
        effect=f"the label {names.LABEL_POLICY} of namespaces has no effect",
        right="list and watch of namespaces",
    )
