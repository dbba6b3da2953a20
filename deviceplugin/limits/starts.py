"""From an accepted start to the limits of its containers."""

from dataclasses import dataclass, replace

from deviceplugin.decision import Accept, Decision, Reason, Refuse
from deviceplugin.limits.backend import LimitedStart, LimitError
from deviceplugin.limits.node import NodeLimits
from gpushare.model.allocation import Grant
from gpushare.model.gpu import NodeInventory
from gpushare.wire import pods
from gpushare.wire.pods import Pod


@dataclass(frozen=True, slots=True)
class LimitStarts:
    """Safe for use by many threads."""

    limits: NodeLimits

    def __call__(self, pod: Pod, accepted: Accept, inventory: NodeInventory) -> Decision:
        """The start with what holds its limits, or a refusal if they cannot be held."""
        try:
            edits = {
                grant.container: self.limits.prepare(start(pod, grant, accepted, inventory))
                for grant in accepted.grants
            }
        except LimitError as error:
            return Refuse(Reason.NOT_LIMITED, f"pod {pods.ref(pod)}: {error}")
        return replace(accepted, limits=edits)


def start(pod: Pod, grant: Grant, accepted: Accept, inventory: NodeInventory) -> LimitedStart:
    """What back ends are told of one container."""
    container = next((each for _, _, each in pods.containers(pod) if each.get("name") == grant.container), {})
    return LimitedStart(
        pod=pods.ref(pod),
        grant=grant,
        of_pod=accepted.of_pod,
        instead=tuple(each for each in accepted.grants if each != grant),
        inventory=inventory,
        variables=frozenset(entry["name"] for entry in container.get("env") or ()),
        open_env=bool(container.get("envFrom")),
        image=str(container.get("image") or ""),
        annotations=pods.annotations(pod),
    )
