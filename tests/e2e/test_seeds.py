"""The manifests of users' guides that ask for whole GPUs, which this installation hands out (`GPUSHARE_WHOLE_GPUS`).

Those that share GPUs are samples.
"""

import pytest

from localcluster import installation
from tests.e2e import checks
from tests.e2e.conftest import GPU_GIB
from tests.e2e.system import Json, System, allocated, shown_by_inspect

pytestmark = pytest.mark.e2e
SEEDS = installation.ROOT / "tests" / "seeds"


@pytest.fixture(scope="module")
def shared(system: System, shared_namespace: str) -> list[Json]:
    """Pods that share GPUs."""
    for name in ("gpu-share-pod1", "gpu-share-pod2"):
        system.cluster.kubectl("apply", "-n", shared_namespace, "-f", str(SEEDS / f"{name}.yaml"))
    return system.all_running(shared_namespace, 2)


@pytest.mark.parametrize("seed", ["gpu-pod-vectoradd", "gpu-pod-whole"])
def test_a_whole_gpu_beside_shared_ones(system: System, shared: list[Json], namespace: str, seed: str) -> None:
    """As the guides ask NVIDIA's plugin: a GPU that no one else is on, while others are shared."""
    system.cluster.kubectl("apply", "-n", namespace, "-f", str(SEEDS / f"{seed}.yaml"))
    [pod] = system.running(namespace, "gpu-pod")
    checks.every_container_sees_exactly_its_gpus(system, namespace, [pod])
    [gpus] = allocated(pod).values()
    assert len(gpus) == 1
    assert not set(gpus) & {gpu for share in shared for listed in allocated(share).values() for gpu in listed}
    assert sum(shown_by_inspect(system, namespace)["gpu-pod"].values()) == GPU_GIB * 1024
    checks.no_gpu_is_over_its_memory(system)
    checks.the_controllers_ledger_equals_the_pods(system)
