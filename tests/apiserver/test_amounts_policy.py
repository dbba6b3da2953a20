"""What the API server refuses by itself: amounts of GPUs whose sum would leave 64 bits."""

import pytest

from gpushare import names, units
from tests.apiserver.policies import admit, container, deny, pod
from tests.apiserver.server import Server

MESSAGE = f"a container asks for more of a GPU resource than any node can have; write a number up to {units.MAX_UNITS}"
MIG = "nvidia.com/mig-1g.5gb"
RESOURCES = [names.GPU, names.GPU_MEM, names.GPU_PERCENT, MIG, "nvidia.com/x", "aliyun.com/x"]
TOO_MUCH = ["10E", "8Ei", str(2**63 - 1), str(2**62), "1000000001", "1e10"]


@pytest.mark.parametrize("resource", RESOURCES)
def test_an_amount_that_no_node_has_is_refused(policies: Server, resource: str) -> None:
    assert MESSAGE in deny(
        policies, names.AMOUNTS_POLICY, pod(container("a"), container("x", limits={resource: "10E"}))
    )


@pytest.mark.parametrize("amount", TOO_MUCH)
def test_it_is_refused_however_it_is_written_and_in_every_kind_of_container(policies: Server, amount: str) -> None:
    big = container("x", limits={MIG: amount})
    for value in (pod(big), pod(init=(big,)), pod(init=({**big, "restartPolicy": "Always"},))):
        assert MESSAGE in deny(policies, names.AMOUNTS_POLICY, value)


def test_what_a_node_may_have_passes(policies: Server) -> None:
    for amount in ("1", "1k", "1G", str(units.MAX_UNITS)):
        admit(policies, pod(container("a", limits={"cpu": "1", **dict.fromkeys(RESOURCES, amount)})))
    admit(policies, pod(container("a", limits={"example.com/x": "9E", "memory": "7Ei"})))
