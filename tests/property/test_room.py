"""What is kept of each node gives the answers of `place`, word for word."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from controller.rooms import STEP, Rooms
from gpushare.identity import NodeName
from gpushare.model.allocation import Placed, RefusalReason, Refused
from gpushare.model.gpu import GpuHealth
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import RequestShape
from gpushare.model.selector import ANY_GPU
from gpushare.placement import explain, judge, room
from gpushare.placement.judge import Judge
from gpushare.placement.place import place
from testing.builders import make_shape
from tests.property.strategies import ledgers, shapes

UNIT_MIB = 1024


def simple_pod(mib: int) -> RequestShape:
    shape = make_shape(1)
    return replace(shape, containers=(replace(shape.containers[0], memory_mib=mib),))


@given(st.integers(1, 12 * UNIT_MIB), ledgers())
def test_a_simple_pod_is_judged_by_what_is_free_on_one_gpu(mib: int, ledger: NodeLedger) -> None:
    shape, found, unit = simple_pod(mib), room.of_ledger(ledger), ledger.inventory.unit
    assert room.simple(shape) == mib
    verdict = place(shape, ledger)
    if isinstance(found, Refused):
        assert found == verdict
    elif isinstance(verdict, Placed):
        assert found.free_mib >= mib
    else:
        never = found.largest_mib < mib
        text = explain.needs_memory(mib, unit) + (found.never if never else found.left)
        assert found.free_mib < mib
        assert verdict == Refused(RefusalReason.INSUFFICIENT_GPU_MEMORY, text, permanent=never)


@given(shapes(max_containers=1), st.lists(ledgers(), min_size=1, max_size=3), st.booleans())
def test_whatever_can_be_judged_is_judged_as_by_place(
    shape: RequestShape, nodes: list[NodeLedger], healthy: bool
) -> None:
    assume(judge.can_judge(shape))
    mine = Judge(shape, nodes[0].inventory.unit)
    for ledger in map(plain, nodes) if healthy else nodes:
        found, verdict = room.of_ledger(ledger), place(shape, ledger)
        if isinstance(found, Refused):
            assert found == verdict or shape.only_cdi
            continue
        said = mine.fits(found)
        assert said is None or said == (verdict if isinstance(verdict, Refused) else True)
        if isinstance(verdict, Placed):
            assert said is True


def plain(ledger: NodeLedger) -> NodeLedger:
    """The same without MIG instances, and with healthy GPUs alone."""
    gpus = tuple(replace(gpu, mig=None, health=GpuHealth.HEALTHY) for gpu in ledger.inventory.gpus)
    return NodeLedger.of(replace(ledger.inventory, gpus=gpus), ledger.allocations.values())


@given(shapes(max_containers=1), ledgers())
def test_on_a_plain_node_few_pods_need_a_closer_look(shape: RequestShape, ledger: NodeLedger) -> None:
    assume(judge.can_judge(shape) and not shape.only_cdi)
    ledger = plain(ledger)
    found, verdict = room.of_ledger(ledger), place(shape, ledger)
    assert not isinstance(found, Refused)
    count, matching = shape.containers[0].gpu_count, shape.gpus == ANY_GPU
    if matching and count <= len(found.gpus):
        assert Judge(shape, ledger.inventory.unit).fits(found) == (verdict if isinstance(verdict, Refused) else True)


@given(shapes(max_containers=1), st.lists(ledgers(), min_size=1, max_size=3), st.integers(0, 20))
def test_where_one_gpu_has_enough_a_pod_fits(shape: RequestShape, nodes: list[NodeLedger], first: int) -> None:
    request = shape.containers[0]
    shape = replace(shape, containers=(replace(request, gpu_count=1),), gpus=ANY_GPU, affinity=None, only_cdi=False)
    assume(room.asks_one(shape))
    rooms, step = Rooms(), -(-request.compute_percent // STEP) * STEP
    for number, ledger in enumerate(nodes):
        if number == first % (len(nodes) + 1):
            rooms.keep(step)
        rooms.set(NodeName(str(number)), room.of_ledger(ledger))
    enough = room.enough_mib(shape, rooms.largest_mib)
    for number, ledger in enumerate(nodes):
        free_mib, fits = rooms.keep(step)[NodeName(str(number))], isinstance(place(shape, ledger), Placed)
        assert fits or free_mib < enough
        if request.compute_percent == step and request.memory_mib:
            assert fits == (free_mib >= enough)


@given(shapes(max_containers=1), ledgers())
def test_on_a_plain_node_what_is_free_tells_where_a_share_of_one_gpu_fits(
    shape: RequestShape, ledger: NodeLedger
) -> None:
    request = replace(shape.containers[0], gpu_count=1)
    shape = replace(shape, containers=(request,), gpus=ANY_GPU, affinity=None, only_cdi=False)
    assume(room.asks_one(shape))
    for node in (ledger, plain(ledger)):
        found, verdict = room.of_ledger(node), place(shape, node)
        if isinstance(found, Refused):
            continue
        fits = found.fits(request)
        assert fits is None or fits == isinstance(verdict, Placed)
        alike = len({gpu.memory_mib for gpu in node.inventory.gpus}) == 1
        assert (fits is None) == (not found.plain or not (request.memory_mib or alike))


def test_nothing_else_counts_as_simple() -> None:
    simple = make_shape(3)
    [request] = simple.containers
    others = [
        replace(simple, containers=(request, request)),
        replace(simple, containers=(replace(request, gpu_count=2),)),
        replace(simple, containers=(replace(request, compute_percent=2),)),
        replace(simple, containers=(replace(request, memory_mib=0, memory_percent=50),)),
        replace(simple, containers=(replace(request, memory_mib=0, whole=True),)),
        replace(simple, gpus=replace(ANY_GPU, min_memory_mib=1)),
        replace(simple, only_cdi=True),
    ]
    assert [room.simple(shape) for shape in [simple, *others]] == [3 * UNIT_MIB] + [0] * len(others)
