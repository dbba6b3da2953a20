"""What `dense` makes of small and mixed clusters, pod after pod, and with MiB as GPUs really have them."""

import random
from collections.abc import Sequence

from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import Choice, accepts
from gpushare.placement import outlook
from gpushare.placement.policies import Binpack, Dense
from testing.placing import after, best

GIB = 1024
MIB = {"T4": 15360, "A10": 23028, "A100": 40960, "H100": 81559}


def node(model: str, gpus: int = 2, cpu: int = 64_000) -> NodeCapacity:
    return NodeCapacity(model, (FreeGpu(MIB[model], MIB[model]),) * gpus, FreeHost(cpu, 256 * GIB))


def share(gib: int, *models: str) -> Ask:
    return Ask(gpus=1, memory_mib=gib * GIB, cpu_milli=2000, host_mib=4 * GIB, models=Choice(wanted=models))


def whole(*models: str, gpus: int = 1) -> Ask:
    return Ask(gpus=gpus, whole=True, cpu_milli=4000, host_mib=8 * GIB, models=Choice(wanted=models))


def filled(
    empty: Sequence[NodeCapacity], pods: Sequence[Ask], *, dense: bool = True
) -> tuple[list[NodeCapacity], list[int]]:
    """The nodes, and where each pod went; -1 if nowhere. What comes later is not known."""
    nodes, went = list(empty), list[int]()
    for position, pod in enumerate(pods):
        ranking = Dense(outlook.of_cluster(pods[: position + 1], empty, nodes)) if dense else Binpack()
        found = {
            i: one
            for i, room in enumerate(nodes)
            if accepts(pod.models, room.model) and (one := best(pod, room, ranking)) is not None
        }
        chosen = min(found, key=lambda i: (found[i].cost, i), default=-1)
        went.append(chosen)
        if chosen >= 0:
            nodes[chosen] = after(nodes[chosen], pod, found[chosen].gpus)
    return nodes, went


def untouched(nodes: Sequence[NodeCapacity]) -> int:
    return sum(gpu.untouched for room in nodes for gpu in room.gpus)


def test_two_pods_share_a_gpu_before_a_third_gpu_is_opened() -> None:
    nodes, went = filled([node("A10")] * 3, [share(8)] * 4)
    assert untouched(nodes) == 4
    assert len(set(went)) == 1, "the other nodes stay free for wide pods"


def test_a_small_pod_fills_the_remainder_that_nothing_else_fills() -> None:
    """10 and 10 GiB leave 2.5 GiB; beside a pod of 8 GiB there is room for another that needs it."""
    nodes, went = filled([node("A10", 1)] * 3, [share(10), share(10), share(8), share(2)])
    assert went[3] == went[0] == went[1]
    assert untouched(nodes) == 1


def test_a_pod_that_needs_a_model_still_finds_it() -> None:
    empty = [node("A100"), node("T4"), node("T4")]
    _, went = filled(empty, [whole(), share(8), whole(), share(4), share(4), whole("A100")])
    assert went[5] == 0


def test_a_pod_that_takes_a_gpu_whole_takes_a_small_one() -> None:
    assert filled([node("H100", 1), node("T4", 1)], [whole(), whole()])[1] == [1, 0]


def test_shares_of_half_a_small_gpu_leave_it_to_pods_that_take_it_whole() -> None:
    """A whole GPU is one pod on either; of 8 GiB the large one has room for nine, the small one for one."""
    nodes = {"H100": node("H100", 1), "T4": node("T4", 1)}
    ranking = Dense(outlook.of_cluster([share(8), whole()] * 5, nodes.values(), nodes.values()))

    def cheapest(pod: Ask) -> str:
        found = {name: one.cost for name, room in nodes.items() if (one := best(pod, room, ranking)) is not None}
        return min(found, key=found.__getitem__)

    assert [cheapest(share(8)), cheapest(whole())] == ["H100", "T4"]


def test_in_small_clusters_as_many_pods_fit_and_gpus_stay_free_as_with_binpack() -> None:
    """Three nodes of two GPUs and up to 20 pods: over many mixes, not in each of them."""
    usual = [share(2), share(3), share(4), share(8), share(10), whole()]
    free = placed = free_of_binpack = placed_of_binpack = 0
    for models in (("A10",) * 3, ("T4", "A10", "A100"), ("T4", "T4", "H100")):
        empty = [node(model) for model in models]
        for seed in range(10):
            rng = random.Random(f"{seed} {models}")
            pods = rng.choices(usual, k=rng.randint(3, 20))
            nodes, went = filled(empty, pods)
            others, of_binpack = filled(empty, pods, dense=False)
            free, free_of_binpack = free + untouched(nodes), free_of_binpack + untouched(others)
            placed += sum(place >= 0 for place in went)
            placed_of_binpack += sum(place >= 0 for place in of_binpack)
    assert placed >= placed_of_binpack
    assert free >= free_of_binpack
