"""How full GPUs get: policies rank all nodes for every pod of a trace. Prints a table.

python -m bench.trace DIRECTORY [--traces default,gpuspec25] [--policies dense,fgd] [--seeds 42-51] [--json FILE]

The directory holds Alibaba's cluster-trace-gpu-v2023: openb_node_list_gpu_node.csv and openb_pod_list_<trace>.csv, both
may be gzipped, and orders_<trace>.npz if recorded orders are to be used. The protocol is that of 'Beware of
Fragmentation' (USENIX ATC 2023): pods come in random order, with more drawn from the list until they ask for 130 % of
the GPUs; none ever leaves, and one that does not fit is dropped.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from bench import arguments as arguments_of
from bench.packing.policies import POLICIES
from bench.packing.replay import LOADS, Outcome, replay
from bench.packing.workload import Workload
from bench.results import Results, progress


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    results = Results("trace", options.json)
    print(
        f"{'trace':<14}{'policy':<14}{'seeds':>5}" + "".join(f"{f'@{load}':>8}" for load in LOADS) + "   sd@100  s/run"
    )
    for trace in options.traces.split(","):
        workload = Workload.read(options.directory, trace)
        for policy in options.policies:
            found = []
            for seed in options.seeds:
                progress(f"{trace} {policy} seed {seed}")
                started = time.process_time()
                order, nodes = workload.orders(seed, recorded=not options.own_orders)
                curve = replay(workload, order, nodes, policy)
                found.append(Outcome(trace, policy, seed, curve, time.process_time() - started))
            _print(found)
            results.add(map(asdict, found))
    return 0


def _print(found: Sequence[Outcome]) -> None:
    means = [statistics.mean(one.at[load] for one in found) for load in LOADS]
    spread = statistics.stdev(one.at[100] for one in found) if len(found) > 1 else 0.0
    cells = "".join(f"{mean:8.2f}" for mean in means)
    took = statistics.mean(one.cpu_s for one in found)
    print(f"{found[0].trace:<14}{found[0].policy:<14}{len(found):>5}{cells}{spread:9.2f}{took:7.0f}", flush=True)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.trace", description="GPU allocation of policies on a trace")
    arguments_of.add(parser, POLICIES, "dense,fgd")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
