"""What the words of a request mean in one cluster: decided by its administrators, the same for every component."""

from dataclasses import dataclass

from gpushare import names, units
from gpushare.units import MemoryUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceConfig:
    """The settings by which a pod's request is read."""

    unit: MemoryUnit = units.GIB
    """What one `aliyun.com/gpu-mem` stands for."""
    whole_gpus: bool = False
    """Whether `nvidia.com/gpu` is this project's; otherwise it is another plugin's and none of our business."""

    @property
    def resources(self) -> tuple[str, ...]:
        """Extended resources that make a pod one of ours."""
        return (*names.SHARED_RESOURCES, names.GPU) if self.whole_gpus else names.SHARED_RESOURCES
