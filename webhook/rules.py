"""By what admission decides. Pure."""

from dataclasses import dataclass

from gpushare import names
from gpushare.dialect import Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the administrator decided, and what holds in the cluster right now."""

    dialect: Dialect
    """Which resources are ours, and what one unit of them is."""
    scheduler: str = names.SCHEDULER
    """For GPU pods that name none; empty to leave the cluster's default."""
    runtime_class: str | None = names.RUNTIME_CLASS
    """For GPU pods that name none; None to leave it out."""
    runtime_class_unknown: str = ""
    """Why `runtime_class` cannot be told at the moment; empty if it can."""
    foreign_resources: tuple[str, ...] = ("nvidia.com/",)
    """Prefixes of resources of other GPU plugins, which choose the devices of containers that ask for them."""

    def is_foreign(self, resource: str) -> bool:
        """Whether another GPU plugin serves it."""
        return resource.startswith(self.foreign_resources) and resource not in self.dialect.resources
