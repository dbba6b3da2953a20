"""How full GPUs get when pods ask by ResourceClaims, for which kube-scheduler chooses the GPUs. Prints a table.

python -m bench.trace_claims DIRECTORY [--traces default] [--rows default,dense] [--seeds 42-43] [--json FILE]

The directory and the protocol are those of `bench.trace`, and nodes are chosen by the engine of `gpushare simulate`. On
the node that wins, a pod gets the first GPUs with room in the order of the node's ResourceSlice, which is one for all
pods. Pods without GPUs are left to kube-scheduler.
"""

import argparse
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from bench import arguments as arguments_of
from bench.packing.replay import LOADS, PODS, fill
from bench.packing.workload import Workload
from bench.results import Results, progress
from gpushare.model.capacity import FreeGpu
from gpushare.model.gpu import Gpu
from gpushare.model.ledger import Allocation, Grant, NodeLedger, Placed, Verdict
from gpushare.model.request import PodRequest, Policy
from gpushare.placement.columns import Gpus, Ints
from gpushare.placement.policies import Dense, Policies, Scoring
from gpushare_cli import kube_scores
from gpushare_cli.kube_scores import Fit, Rules
from gpushare_cli.simulate.cluster import Cluster, Learner, Nodes
from gpushare_cli.simulate.scheduler import Scheduler, SchedulerConfig
from gpushare_cli.simulate.signature import PodSignature
from testing.simulated_cluster import nodes_of

INDEX, FULLEST, EMPTIEST = "by index", "fullest first", "emptiest first"
_SIGNS: Final = {INDEX: 0, FULLEST: 1, EMPTIEST: -1}  # of what is free, by which a slice is sorted, then by index


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a pod gets its GPUs."""

    ranking: Policy | None = None  # by which the controller ranks nodes; None if kube-scheduler's scores decide
    order: str = ""  # of a slice; empty for gpu-mem, where the controller chooses the GPUs, too
    late: int = 0  # pods that come until a slice is written again
    judged: bool = False  # `dense` judges a node by the GPU that kube-scheduler will take, not by the best one
    fit: Fit = Fit.LEAST_ALLOCATED


ROWS: Mapping[str, Way] = {
    "default": Way(order=INDEX),
    "most-allocated": Way(order=INDEX, fit=Fit.MOST_ALLOCATED),
    "default-fullest": Way(order=FULLEST),
    "default-emptiest": Way(order=EMPTIEST),
    "binpack": Way(order=FULLEST, ranking=Policy.BINPACK),
    "fgd": Way(order=FULLEST, ranking=Policy.FGD),
    "dense": Way(order=FULLEST, ranking=Policy.DENSE),
    "dense-judged": Way(order=FULLEST, ranking=Policy.DENSE, judged=True),
    "dense-late": Way(order=FULLEST, ranking=Policy.DENSE, late=130),
    "dense-index": Way(order=INDEX, ranking=Policy.DENSE),
    "dense-emptiest": Way(order=EMPTIEST, ranking=Policy.DENSE),
    "gpu-mem-binpack": Way(ranking=Policy.BINPACK),
    "gpu-mem-dense": Way(ranking=Policy.DENSE),
}


@dataclass(frozen=True)
class Outcome:
    trace: str
    row: str
    seed: int
    at: dict[int, float] = field(repr=False)
    """Per cent of the GPUs that are allocated, by per cent that pods have asked for."""
    refused: float  # per cent of the pods, in the end
    broken: float  # per cent of all GPU memory that is then free on GPUs of which pods hold a part
    cpu_s: float


class _Fullest(Dense):
    def gpu_costs(self, gpus: Gpus, mib: Ints | int, percent: Ints | int) -> Ints:  # noqa: ARG002 - of the protocol
        return gpus.free


class _Judged(Policies):
    def of(self, policy: Policy | None) -> Scoring:
        return _Fullest(self.outlook) if policy is Policy.DENSE else super().of(policy)


class Claims(Cluster):
    """Nodes that are ranked by the controller, and GPUs that kube-scheduler takes from slices."""

    def __init__(self, nodes: Nodes, way: Way, learner: Learner) -> None:
        policy = way.ranking or Policy.BINPACK
        super().__init__(nodes, policy, learner)
        if way.judged:
            self.policies = _Judged(policy, self.policies.outlook)
        self._sign, self._late, self._came = _SIGNS[way.order], way.late, 0
        self._slices = [self._sorted(node) for node in range(len(self.names))]
        self._written = deque[tuple[int, int, Sequence[Gpu]]]()

    def came(self, pod: PodSignature) -> None:
        super().came(pod)
        self._came += 1
        while self._written and self._written[0][0] < self._came:
            _, node, self._slices[node] = self._written.popleft()

    def verdict(self, pod: PodSignature, node: int) -> Verdict:
        """The first GPUs of the slice that have room; it is asked only where there are enough."""
        ledger, ask = self._ledger(node), pod.ask
        assert pod.shape is not None  # others get no GPU
        gpus = [gpu for gpu in self._slices[node] if ask.fits(FreeGpu.of(gpu, ledger))][: ask.gpus]
        mib, percent = ask.need(FreeGpu.of(gpus[-1], ledger))
        grant = Grant(
            container=pod.shape.containers[0].container,
            gpus=tuple(gpu.uuid for gpu in gpus),
            memory_mib=mib,
            compute_percent=percent,
            whole=ask.whole,
        )
        return Placed((grant,))

    def take(self, pod: PodSignature, node: int, request: PodRequest | None) -> Allocation | None:
        found = super().take(pod, node, request)
        if found is not None:
            self._written.append((self._came + self._late, node, self._sorted(node)))
        return found

    def _sorted(self, node: int) -> Sequence[Gpu]:
        ledger = self._ledger(node)
        return sorted(ledger.inventory.gpus, key=lambda gpu: (self._sign * ledger.left_mib(gpu), gpu.index))

    def _ledger(self, node: int) -> NodeLedger:
        ledger = self.ledgers[node]
        assert isinstance(ledger, NodeLedger)  # all nodes of a trace share
        return ledger


def once(workload: Workload, row: str, seed: int, *, own_orders: bool = False) -> Outcome:
    """One seed."""
    started, way = time.process_time(), ROWS[row]
    order, _ = workload.orders(seed, recorded=not own_orders)
    nodes, learner = nodes_of(workload.nodes, max_pods=PODS), Learner(draw=random.Random(f"{seed} looks").randrange)
    policy = way.ranking or Policy.BINPACK
    cluster = Claims(nodes, way, learner) if way.order else Cluster(nodes, policy, learner)
    weight = kube_scores.needed(kube_scores.UNASKED) if way.ranking else 0
    config = SchedulerConfig(policy=policy, rules=Rules(fit=way.fit), weight=weight)
    curve, placed = fill(Scheduler(nodes, cluster, config, random.Random(seed).randrange), workload, order)
    broken = sum(gpu.free_mib for room in cluster.rooms for gpu in room.gpus if not gpu.untouched)
    return Outcome(
        workload.trace,
        row,
        seed,
        curve.at(),
        refused=round(100 - 100 * placed / len(order), 2),
        broken=round(100 * broken / workload.capacity, 2),
        cpu_s=round(time.process_time() - started, 1),
    )


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    results = Results("trace_claims", options.json)
    loads = "".join(f"{f'@{load}':>8}" for load in LOADS)
    print(f"{'trace':<12}{'row':<18}{'seeds':>5}{loads} refused  broken  s/run")
    for trace in options.traces.split(","):
        workload = Workload.read(options.directory, trace)
        for row in options.rows:
            found = []
            for seed in options.seeds:
                progress(f"{trace} {row} seed {seed}")
                found.append(once(workload, row, seed, own_orders=options.own_orders))
            _print(found)
            results.add(map(asdict, found))
    return 0


def _print(found: Sequence[Outcome]) -> None:
    cells = "".join(f"{statistics.mean(one.at[load] for one in found):8.2f}" for load in LOADS)
    refused, broken, took = map(
        statistics.mean, zip(*((one.refused, one.broken, one.cpu_s) for one in found), strict=True)
    )
    print(
        f"{found[0].trace:<12}{found[0].row:<18}{len(found):>5}{cells}{refused:8.2f}{broken:8.2f}{took:7.0f}",
        flush=True,
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.trace_claims", description="GPU allocation of claims")
    arguments_of.add_trace(parser)
    arguments_of.add_rows(parser, ROWS, ",".join(ROWS))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
