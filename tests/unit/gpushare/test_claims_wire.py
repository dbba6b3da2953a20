"""What of ResourceClaims and modes the device plugin's own tests do not tell."""

import pytest

from gpushare.identity import NodeName
from gpushare.model.gpu import Mode
from gpushare.wire import claims, modes
from testing.builders import make_claim, make_inventory


def test_shares_are_told_by_request_and_amounts_may_have_the_drivers_domain_before_their_names() -> None:
    found = claims.reduce(make_claim("web", GPU_1="3Gi", GPU_2="1Gi"))
    found["results"][0]["consumedCapacity"] = {"gpu.gpushare.dev/memory": "2Gi", "compute": "20"}
    found["results"][1]["request"] = "other"
    claim = claims.read(found, NodeName("node-a"))
    sizes = {name: [(share.memory, share.compute) for share in shares] for name, shares in claim.requests.items()}
    assert sizes == {"gpu": [(2**31, 20)], "other": [(2**30, 0)]}
    assert claim.pod is None


@pytest.mark.parametrize(("text", "dra"), [("", False), ("dra,A100=device-plugin", True), ("A100=dra", True)])
def test_modes_that_are_wanted_of_some_gpus(text: str, dra: bool) -> None:
    assert modes.parse(text).has(Mode.DRA) == dra


def test_names_that_are_of_no_gpu() -> None:
    gpus = make_inventory(15, 15).gpus
    assert modes.parse(f"dra,H100=dra,t4=dra,{gpus[1].uuid}=dra,GPU-9=dra").unmatched(gpus) == ["H100", "GPU-9"]
