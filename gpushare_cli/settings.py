"""What the administrators decided for all components, as far as the command line depends on it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare import names
from gpushare.model.request import DEFAULT_POLICY, Policy
from gpushare.runtime import options
from gpushare.runtime.options import option
from gpushare.units import GIB, MemoryUnit, ResourceConfig
from gpushare.wire import fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Fields are named as in the components' own settings."""

    memory_unit: MemoryUnit | None = option(None, "None for the one in which the nodes count", parse=MemoryUnit.parse)
    whole_gpus: bool = option(False, f"whether {names.GPU} is this project's", parse=options.boolean)
    gpu_policy: Policy = option(DEFAULT_POLICY, "of pods that name none", parse=Policy)
    gpu_percent: bool = option(True, f"whether nodes offer {names.GPU_PERCENT}", parse=options.boolean)
    scheduler_name: str = option(names.SCHEDULER, "empty if GPU pods go to the cluster's own")
    runtime_class: str = option(names.RUNTIME_CLASS, "of GPU pods that name none")
    runtime_class_mode: str = option("where-needed", "when the webhook writes it")

    @property
    def resource_config(self) -> ResourceConfig:
        """By which requests are read where nothing is set."""
        return ResourceConfig(unit=self.memory_unit or GIB, whole_gpus=self.whole_gpus)


def load(config: Mapping[str, Any] | None) -> Settings:
    """The settings of the installation's ConfigMap; the defaults without one.

    Raises:
        SettingsError: one cannot be understood.
        WireError: this is no ConfigMap.
    """
    data = fields.mapping(config or {}, "data", names.CONFIG)
    variables = {key: fields.text(data, key, f"{names.CONFIG}.data") for key in data}
    return options.load(Settings, (), prog=names.CONFIG, environ=variables)
