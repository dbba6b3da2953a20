"""Which RuntimeClass GPU pods get: a pod that names one that does not exist is rejected."""

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from gpushare import names
from gpushare.errors import GpuShareError
from gpushare.kube.api import KubeApi
from gpushare.runtime.clock import Clock
from gpushare.wire import hand_over
from webhook.lookup import Lookup, NoAnswerError


class Mode(Enum):
    """When `runtimeClassName` is written."""

    WHERE_NEEDED = "where-needed"
    IF_EXISTS = "if-exists"
    ALWAYS = "always"
    NEVER = "never"


class UnknownRuntimeClassError(GpuShareError):
    """No one has said yet whether the RuntimeClass exists, or whether pods need it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is written into a pod that names no RuntimeClass."""

    name: str | None
    """None to leave it out."""
    only_cdi: bool = False
    """It was left out because every node hands over by CDI, or because an administrator refuses it to all pods, so the
    pod is right on such nodes alone."""


class RuntimeClass:
    """The RuntimeClass that GPU pods get. Safe for many threads."""

    def __init__(self, *, api: KubeApi, clock: Clock, name: str, mode: Mode, namespace: str = names.NAMESPACE) -> None:
        """Args: namespace: of the installation, where the controller says how nodes hand over GPUs."""
        self.name = name
        self.mode = mode
        self._exists = Lookup(
            api=api,
            clock=clock,
            path=f"/apis/node.k8s.io/v1/runtimeclasses/{name}",
            read=lambda found: found is not None,
            way_out="allow the webhook's ServiceAccount to get runtimeclasses of node.k8s.io,"
            " or set --runtime-class-mode to always or never",
        )
        self._all_cdi = Lookup(
            api=api,
            clock=clock,
            path=hand_over.path(namespace),
            read=hand_over.is_all_cdi,
            way_out=f"allow the webhook's ServiceAccount to get the ConfigMap {names.HAND_OVER}",
        )
        self._refused = Lookup(
            api=api,
            clock=clock,
            path=hand_over.policy_path(namespace),
            read=lambda found: hand_over.refuses(found, name),
            way_out=f"allow the webhook's ServiceAccount to get the ConfigMap {names.RUNTIME_CLASS_POLICY}",
        )

    def current(self) -> Choice:
        """What to write now.

        Raises:
            UnknownRuntimeClassError: the API server has not answered since the start. Both guesses would harm: without
                the class the containers of GPU nodes lack the driver, and with one that does not exist the pod is
                rejected.
        """
        match self.mode:
            case Mode.ALWAYS:
                return Choice(self.name)
            case Mode.NEVER:
                return Choice(None)
            case Mode.IF_EXISTS:
                return self._if_exists()
            case Mode.WHERE_NEEDED:
                left_out = self._holds(self._all_cdi) or self._holds(self._refused)
                return Choice(None, only_cdi=True) if left_out else self._if_exists()
            case _:
                assert_never(self.mode)

    def _if_exists(self) -> Choice:
        try:
            return Choice(self.name if self._exists.current() else None)
        except NoAnswerError as error:
            raise UnknownRuntimeClassError(
                f"it is not known yet whether RuntimeClass {self.name} exists ({error}); try again"
            ) from error

    def _holds(self, lookup: Lookup[bool]) -> bool:
        try:
            return lookup.current()
        except NoAnswerError as error:
            if error.forbidden:  # the rights are of a version that wrote it into every pod
                return False
            raise UnknownRuntimeClassError(
                f"it is not known yet whether GPU pods need RuntimeClass {self.name} ({error}); try again"
            ) from error
