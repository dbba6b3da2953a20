"""What can hold limits on this node, as the settings say."""

from deviceplugin.limits import choose
from deviceplugin.limits.advisory import AdvisoryBackend
from deviceplugin.limits.backend import LimitBackend
from deviceplugin.limits.mig import MigBackend
from deviceplugin.limits.node import NodeLimits, OnFailure
from deviceplugin.settings import Settings
from gpushare.runtime.clock import Clock


def node_limits(settings: Settings, clock: Clock) -> NodeLimits:
    """All back ends that the settings allow."""
    backends: tuple[LimitBackend, ...] = (MigBackend(), AdvisoryBackend())
    return NodeLimits(
        backends={backend.limit: backend for backend in backends},
        wanted=choose.order(settings.limits),
        on_failure=OnFailure(settings.limit_failure),
        clock=clock,
    )
