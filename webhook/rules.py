"""By what admission decides. Pure."""

from dataclasses import dataclass
from typing import Final

from gpushare import names
from gpushare.units import ResourceConfig

DEFAULT_SCHEDULER: Final = "default-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the administrator decided, and what holds in the cluster right now."""

    resource_config: ResourceConfig
    """Which resources are ours, and what one unit of them is."""
    scheduler: str = names.SCHEDULER
    """For GPU pods that name none; empty to leave the cluster's default."""
    other_schedulers: tuple[str, ...] = ()
    """Further ones that ask the controller as an extender."""
    runtime_class: str | None = names.RUNTIME_CLASS
    """For GPU pods that name none; None to leave it out."""
    only_cdi: bool = False
    """Whether pods get no RuntimeClass because all nodes hand GPUs over by CDI, and are placed on such nodes alone."""
    demands_limit: bool = False
    """Whether GPU pods demand an enforced limit, as those of a namespace with the label do."""
    runtime_class_unknown: str = ""
    """Why `runtime_class` cannot be told at the moment; empty if it can."""
    foreign_resources: tuple[str, ...] = names.PLUGIN_RESOURCES
    """Resources of other GPU plugins that choose the devices of the containers that ask for them; a trailing * stands
    for any ending. A container with any other resource gets no GPU by it, so none is shown to it."""

    def asks_us(self, scheduler: str) -> bool:
        """Whether a scheduler asks the controller where GPUs are free."""
        return scheduler in {self.scheduler or DEFAULT_SCHEDULER, *self.other_schedulers}

    def is_foreign(self, resource: str) -> bool:
        """Whether another GPU plugin serves it and chooses devices by itself."""
        return resource not in self.resource_config.resources and any(
            resource.startswith(each[:-1]) if each.endswith("*") else resource == each
            for each in self.foreign_resources
        )
