"""What a claim was allocated, and whether it fits beside what is prepared."""

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, strategies as st

from deviceplugin.dra import claims
from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import HandOver
from gpushare.wire import claims as wire
from gpushare.wire.claims import Claim, Share, device_name
from testing.builders import Json, make_gpu, make_inventory

INVENTORY: Final = replace(
    make_inventory(),
    hand_over=HandOver.CDI,
    gpus=(replace(make_gpu(0, 16), uuid=GpuUuid("GPU-mem")),),
    dra=tuple(replace(make_gpu(i + 1, 80), uuid=GpuUuid(f"GPU-{i}")) for i in range(2)),
)
GIB: Final = 2**30


def result(device: str = "gpu-0", memory: Any = "3Gi", compute: Any = "0", **more: Any) -> Json:
    consumed = {"memory": memory, "compute": compute}
    return {
        "driver": names.DRA_DRIVER,
        "pool": "node-a",
        "device": device,
        "request": "gpu",
        "shareID": "s",
        "consumedCapacity": consumed,
        **more,
    }


def claim_object(*results: Json, name: str = "c") -> Json:
    reserved = [{"resource": "pods", "name": "p", "uid": "pod-uid"}]
    status = {"allocation": {"devices": {"results": list(results)}}, "reservedFor": reserved}
    return {"metadata": {"namespace": "t", "name": name, "uid": f"{name}-uid"}, "status": status if results else {}}


def read(*results: Json, name: str = "c") -> Claim:
    return wire.read(wire.reduce(claim_object(*results, name=name)), NodeName("node-a"))


def why_not(*results: Json, beside: tuple[Claim, ...] = ()) -> str:
    return claims.why_not(read(*results), {each.uid: each for each in beside}, INVENTORY)


def test_an_allocation_is_read_and_others_drivers_are_not_looked_at() -> None:
    found = read({"driver": "gpu.nvidia.com", "pool": "x"}, result(request="gpu/large"), result("gpu-1", compute="20"))
    assert (str(found), found.uid, str(found.pod)) == ("t/c", "c-uid", "t/p")
    assert found.shares == (
        Share(request="gpu", device="gpu-0", share_id="s", memory=3 * GIB),
        Share(request="gpu", device="gpu-1", share_id="s", memory=3 * GIB, compute=20),
    )
    assert read(result(memory="1048576500m", compute="1m")).shares[0].memory == 1048577
    assert read(result(adminAccess=True)).shares[0] == Share(request="gpu", device="gpu-0", share_id="s", admin=True)


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([], "it is not allocated"),
        ([{"driver": "gpu.nvidia.com"}], "it is not allocated"),
        ([result(pool="node-b")], "it is allocated on node-b, and this is node node-a"),
        ([result(memory="0")], "results[0].consumedCapacity.memory: '0' is no amount; expected 1048576 or more"),
        ([result(memory=None)], "consumedCapacity.memory: None is no amount"),
        ([result(memory="-9223372036854775808")], "is no amount"),
        ([result(memory="lots")], "is no amount"),
        ([result(memory="9" * 60)], "is no amount"),
        ([result(), result(compute="-1m")], "results[1].consumedCapacity.compute: '-1m' is no amount"),
        ([result(request="")], "request"),
        ([result(consumedCapacity=[])], "consumedCapacity"),
    ],
)
def test_an_allocation_that_cannot_be_prepared_says_why(results: list[Json], words: str) -> None:
    with pytest.raises(WireError) as caught:
        read(*results)
    assert words in str(caught.value)


A: Final = read(result(memory="70Gi", compute="60"), name="a")
B: Final = read(result(memory="7Gi"), name="b")


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ([result(memory="3Gi")], ""),
        ([result("gpu-1", memory="80Gi", compute="100")], ""),
        (
            [result(memory="4Gi")],
            "GPU 1 (Tesla T4, 80 GiB) has 3 GiB left, and 4 GiB are claimed; it is held by t/a (70 GiB), t/b (7 GiB);"
            " the kubelet will try again",
        ),
        (
            [result(memory="2Gi"), result(memory="1073741825")],
            "GPU 1 (Tesla T4, 80 GiB) has 3 GiB left, and 3221225473 bytes are claimed; it is held by t/a (70 GiB), t/b"
            " (7 GiB); the kubelet will try again",
        ),
        (
            [result(compute="50")],
            "GPU 1 (Tesla T4, 80 GiB) has 40 % of compute left, and 50 % of compute are claimed; it is held by t/a (70"
            " GiB), t/b (7 GiB); the kubelet will try again",
        ),
        (
            [result("gpu-1", memory="300Gi")],
            "GPU 2 (Tesla T4, 80 GiB) has 80 GiB left, and 300 GiB are claimed; it has no more",
        ),
        ([result("gpu-7")], "node node-a has no GPU gpu-7 for claims; delete the pod, so that another is chosen"),
        (
            [result(device_name(INVENTORY.gpus[0].uuid))],
            f"GPU {device_name(INVENTORY.gpus[0].uuid)} is shared by aliyun.com/gpu-mem now, not by claims; delete the"
            " pod, so that another is chosen",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_numbers(results: list[Json], why: str) -> None:
    assert why_not(*results, beside=(A, B)) == why


def test_a_claim_that_is_prepared_already_does_not_count_against_itself() -> None:
    assert not claims.why_not(A, {"a-uid": A, "b-uid": B}, INVENTORY)
    other = read(result("gpu-1", memory="1Gi"), name="a")
    assert "what it was allocated before is in use here" in claims.why_not(other, {"a-uid": A}, INVENTORY)
    assert not claims.why_not(other, {"a-uid": replace(A, assumed=True)}, INVENTORY)


def test_without_cdi_no_claim_is_prepared() -> None:
    """A runtime that does not know the device starts the container without it."""
    by_variable = replace(INVENTORY, hand_over=HandOver.ENVVAR)
    assert "hands over by envvar, and claims need cdi" in claims.why_not(A, {}, by_variable)


def test_a_refusal_names_the_largest_holders_only() -> None:
    many = [read(result(memory=f"{i}Gi"), name=f"n{i}") for i in range(1, 13)]
    assert "t/n12 (12 GiB), t/n11 (11 GiB)" in (told := why_not(result(), beside=tuple(many)))
    assert "t/n7 (7 GiB), 6 more; " in told


def test_a_refusal_names_no_claims_of_other_namespaces() -> None:
    others = replace(A, namespace="secret"), replace(B, namespace="other", name="x")
    told = why_not(result(memory="4Gi"), beside=others)
    assert told.endswith("; it is held by claims of other namespaces (77 GiB); the kubelet will try again")


_SHARES = st.lists(
    st.builds(
        Share,
        request=st.sampled_from("ab"),
        device=st.sampled_from(("gpu-0", "gpu-1")),
        share_id=st.text("0123456789abcdef-", max_size=36),
        memory=st.integers(1, 100 * GIB),
        compute=st.integers(0, 100),
        admin=st.booleans(),
    ),
    min_size=1,
    max_size=4,
).map(tuple)


@given(shares=st.lists(_SHARES, max_size=12))
def test_whatever_is_prepared_in_turn_never_sums_up_to_more_than_a_gpu_and_survives_the_checkpoint(
    shares: list[tuple[Share, ...]],
) -> None:
    prepared: dict[str, Claim] = {}
    for number, each in enumerate(shares):
        claim = Claim(uid=str(number), namespace="t", name=f"c{number}", shares=each)
        if not claims.why_not(claim, prepared, INVENTORY):
            prepared[claim.uid] = claim
    assert all(memory <= 80 * GIB and compute <= 100 for memory, compute in wire.sums(prepared.values()).values())
    assert claims.decode(claims.encode(prepared.values())) == tuple(prepared.values())
    assert claims.decode(claims.encode([A])) == (A,)


def test_names_are_of_one_claim_and_request_and_of_one_gpu() -> None:
    assert len({claim.cdi_device(request) for claim in (A, B) for request in ("x", "y")}) == 4
    assert device_name(GpuUuid("MIG-4A_6b.c")) == "mig-4a-6b-c"
    assert len(device_name(GpuUuid("GPU-" + "a" * 80))) == 63
