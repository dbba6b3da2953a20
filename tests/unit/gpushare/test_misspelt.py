"""A resource that no one serves because of a typing error is told with what was meant."""

import pytest

from gpushare import names
from gpushare.units import ResourceConfig
from gpushare.wire import requests

SHARED, WHOLE = ResourceConfig(), ResourceConfig(whole_gpus=True)


@pytest.mark.parametrize(
    ("resource", "meant"),
    [
        *(
            (f"aliyun.com/{name}", names.GPU_MEM)
            for name in ("gpu-memory", "gpumem", "gpu_mem", "GPU-mem", "gpu", "mem")
        ),
        *((f"{domain}/gpu-mem", names.GPU_MEM) for domain in ("alyun.com", "aliyun.co", "nano-gpu", "gpushare.dev")),
        *((f"{domain}/gpu-mem", names.GPU_MEM) for domain in ("example.com", "nvidia.com", "x.aliyun.com")),
        *(
            (f"nano-gpu/{name}", names.GPU_PERCENT)
            for name in ("gpu-percentage", "gpu_percent", "percent", "gpupercent")
        ),
        *((f"{domain}/gpu-percent", names.GPU_PERCENT) for domain in ("aliyun.com", "nanogpu", "nano-gpu.com")),
        *(
            (f"aliyun.com/{name}", names.GPU_CORE)
            for name in ("gpu-core", "gpu-cores.percentage", "gpucore.percentage")
        ),
        ("aliyun.com/gpu-core-percentage", names.GPU_CORE),
        ("nano-gpu/gpu-memory", names.GPU_MEM),
    ],
)
def test_the_nearest_of_ours_is_meant(resource: str, meant: str) -> None:
    assert requests.meant(resource, SHARED) == meant


def test_what_is_ours_or_somebody_elses_means_what_it_says() -> None:
    for resource in [
        *(names.GPU_MEM, names.GPU_PERCENT, names.GPU_CORE, names.GPU_COUNT, "cpu", "memory", "hugepages-2Mi", ""),
        *("aliyun.com/eni", "aliyun.com/rdma", "aliyun.com/ppu", "nano-gpu/x", "aliyun.com/", "nvidia.com/gpu"),
        *("nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/mig-1g.5gb", "volcano.sh/gpu-memory", "amd.com/gpu"),
        *("tencent.com/vcuda-core", "aliyun.com/gpu-mem" + "x" * 200),
    ]:
        assert requests.meant(resource, SHARED) is None
    assert requests.meant("aliyun.com/gpu", WHOLE) == names.GPU
    assert requests.meant("amd.com/gpu", WHOLE) is None
