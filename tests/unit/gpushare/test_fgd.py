"""The published policy, by hand on a few GPUs of 1000 parts."""

from gpushare.model.room import Ask, GpuRoom, HostRoom, NodeRoom
from gpushare.model.selector import Choice, is_model
from gpushare.placement.fgd import Fgd

HALF = Ask(gpus=1, memory_mib=500, cpu_milli=1000)
WHOLE = Ask(gpus=1, whole=True, cpu_milli=1000)


def admits(choice: Choice, model: str) -> bool:
    return choice.admits(lambda meant: is_model(model, meant))


def node(*free: int, cpu: int = 10_000) -> NodeRoom:
    return NodeRoom("T4", tuple(sorted(GpuRoom(1000, mib) for mib in free)), HostRoom(cpu, 10**6))


def score(fgd: Fgd, ask: Ask, room: NodeRoom) -> int:
    found = fgd.best(ask, room)
    assert found is not None
    return -found.cost


def test_what_is_free_counts_for_each_typical_pod_that_it_is_of_use_to() -> None:
    fgd = Fgd([HALF, WHOLE], admits)
    assert fgd.usable(node(1000)) == 1000 + 1000
    assert fgd.usable(node(500)) == 500
    assert fgd.usable(node(400)) == 0
    assert fgd.usable(node(1000, cpu=999)) == 0


def test_a_half_goes_to_a_half() -> None:
    """There the fragment of 500 for whole GPUs ends: 250 of a mean; on an untouched GPU as much begins."""
    fgd = Fgd([HALF, WHOLE], admits)
    assert (score(fgd, HALF, node(500)), score(fgd, HALF, node(1000))) == (56, 43)


def test_only_the_most_frequent_requests_count() -> None:
    fgd = Fgd([HALF] * 96 + [WHOLE] * 4, admits)
    assert fgd.usable(node(1000)) == 96 * 1000


def test_a_model_that_a_pod_does_not_accept_is_of_no_use_to_it() -> None:
    assert Fgd([Ask(gpus=1, whole=True, models=Choice(wanted=("A100",)))], admits).usable(node(1000)) == 0


def test_a_pod_that_does_not_fit_has_no_score() -> None:
    fgd = Fgd([HALF], admits)
    assert fgd.best(HALF, node(400)) is None
    assert fgd.best(HALF, node(1000, cpu=0)) is None
