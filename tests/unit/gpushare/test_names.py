import pytest

from gpushare import names


@pytest.mark.parametrize(
    ("annotation", "reserved"),
    [
        ("gpushare.dev/allocation", True),
        ("devices.gpushare.dev/main", True),
        ("memory.gpushare.dev/main", True),
        ("ALIYUN_COM_GPU_MEM_IDX", True),
        ("scheduler.framework.gpushare.allocation", True),
        ("gpushare.dev/gpus", False),
        ("gpushare.dev/gpu-policy", False),
        ("team.example.com/devices.gpushare.dev", False),
    ],
)
def test_only_what_a_binding_writes_is_reserved(annotation: str, reserved: bool) -> None:
    assert names.is_reserved(annotation) is reserved
