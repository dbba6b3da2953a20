"""The replay and the simulated scheduler over a trace that is small enough to count."""

import json
from pathlib import Path

import pytest

from bench import trace_claims, trace_simulated
from bench.packing.policies import POLICIES
from bench.packing.replay import replay
from bench.packing.workload import Workload
from bench.trace_claims import EMPTIEST, FULLEST, INDEX, Claims, Way
from gpushare.model.capacity import Ask, FreeGpu, NodeCapacity
from gpushare.model.request import Policy
from gpushare.placement.columns import of_gpus
from gpushare_cli.kube_scores import Rules
from gpushare_cli.simulate.cluster import Learner
from gpushare_cli.simulate.scheduler import Scheduler, SchedulerConfig
from testing import traces
from testing.simulated_cluster import nodes_of, request_of, signature_of


@pytest.mark.parametrize("policy", POLICIES)
def test_allocation_follows_what_arrived_and_never_exceeds_it(tmp_path: Path, policy: str) -> None:
    workload = Workload.read(traces.small(tmp_path), "small")
    order, nodes = workload.orders(1, recorded=True)
    curve = replay(workload, order, nodes, policy)
    assert all(allocated <= min(load + 0.5, 100) for load, allocated in curve.items())
    assert curve[130] >= 70


def test_a_row_for_each_policy_every_run_in_the_file_and_a_line_in_the_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, found, drawn = traces.small(tmp_path), tmp_path / "found.json", tmp_path / "drawn.svg"
    arguments = ["--traces", "small", "--rows", "ranked,default", "--seeds", "1-2"]
    trace_simulated.main([str(directory), *arguments, "--json", str(found), "--plot", str(drawn)])

    runs = json.loads(found.read_text(encoding="utf-8"))["rows"]
    assert len(runs) == 4 * 2 * 2
    assert all(50 <= run["at"]["130"] <= 100 and run["placed"] > 0 for run in runs)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 4 * 2
    assert all(f"{policy} ranked" in drawn.read_text(encoding="utf-8") for policy in ("dense", "no ranking (Aliyun's)"))


@pytest.mark.parametrize(
    ("way", "third"),
    [(Way(order=INDEX), 0), (Way(order=FULLEST), 1), (Way(order=FULLEST, late=1), 0), (Way(order=EMPTIEST), 2)],
)
def test_a_claim_gets_the_first_gpus_with_room_in_the_order_of_the_slice(way: Way, third: int) -> None:
    nodes = nodes_of([NodeCapacity("T4", (FreeGpu(1000, 1000),) * 5)])
    scheduler = Scheduler(nodes, Claims(nodes, way, Learner()), SchedulerConfig(rules=Rules(), weight=0), lambda _: 0)
    asks = [*(Ask(gpus=1, memory_mib=mib) for mib in (500, 600, 300)), Ask(gpus=2, whole=True)]
    taken = []
    for number, signature in enumerate(map(signature_of, asks)):
        bound = scheduler.place(signature, request_of(signature, number))
        assert bound is not None
        assert bound.allocation is not None
        taken.append([int(uuid[-1]) for uuid in bound.allocation.grants[0].gpus])
    assert taken[:3] == [[0], [1], [third]]
    assert len(set(taken[3]) - {0, 1, third}) == 2


def test_a_node_is_judged_by_the_gpu_that_will_be_taken_whatever_is_learned() -> None:
    nodes = nodes_of([NodeCapacity("T4", (FreeGpu(1000, 1000),))])
    cluster = Claims(nodes, Way(order=FULLEST, ranking=Policy.DENSE, judged=True), Learner())
    for _ in range(2):
        epoch = cluster.policies.outlook.epoch
        cluster.came(signature_of(Ask(gpus=1, memory_mib=600)))
        assert cluster.policies.outlook.epoch > epoch
        gpus = of_gpus([FreeGpu(1000, 700), FreeGpu(1000, 600)])
        assert cluster.policies.of(Policy.DENSE).gpu_costs(gpus, 600, 0).tolist() == [[700, 600]]


def test_claims_have_a_row_for_each_way_and_pack_without_ranking_as_binpack_does_on_the_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, path = traces.small(tmp_path), tmp_path / "found.json"
    trace_claims.main([str(directory), "--traces", "small", "--seeds", "1-2", "--json", str(path)])

    runs = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(trace_claims.ROWS)
    assert [run["row"] for run in runs] == [row for row in trace_claims.ROWS for _ in range(2)]
    workload = Workload.read(directory, "small")
    other = trace_simulated.once(workload, trace_simulated.UNRANKED, "default", 1, minor=36, own_orders=False)
    [same] = [run for run in runs if run["row"] == "default-fullest" and run["seed"] == 1]
    assert {int(load): share for load, share in same["at"].items()} == other.at
