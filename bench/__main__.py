"""`make bench`: every measurement of docs/contributing/benchmarks.md, one after another.

python -m bench [--results DIRECTORY] [--trace DIRECTORY] [--only NAME,NAME]

`--trace` names the directory of a trace (`bench.trace`); without it, what needs one is left out. Each program writes
its figures to the results' directory, from which `python -m bench.report` makes the page.
"""

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Program:
    """One measurement."""

    title: str
    module: str
    arguments: tuple[str, ...] = ()
    result: str = ""
    """Name of its file; by default the module's."""
    trace: bool = False
    """Whether it needs the trace."""

    @property
    def name(self) -> str:
        return self.result or self.module


_SEEDS = "--seeds=42-51"
_VARIANTS = "cpu050,cpu250,gpushare40,gpushare100,multigpu20,multigpu40,gpuspec10,gpuspec25"
PROGRAMS = (
    Program("device plugin: from its start to its registration", "plugin_start"),
    Program("device plugin: a container's start, 100 GPU pods on the node", "hand_over"),
    Program("device plugin: reading what 100 pods use", "usage"),
    Program("webhook: reviews over TLS, beside the floor", "webhook"),
    Program("bind on a real API server, beside bare Bindings", "bind"),
    Program("creation to Binding by a real kube-scheduler, with and without extender", "bound"),
    Program("start, filter and prioritize on a real API server", "server"),
    Program("trace: policies rank all nodes", "trace", (_SEEDS, "--policies=dense,dense-known,fgd"), trace=True),
    Program(
        "trace: other seeds",
        "trace",
        ("--seeds=1-10", "--own-orders", "--policies=dense,fgd"),
        result="trace_fresh",
        trace=True,
    ),
    Program(
        "trace: its variants",
        "trace",
        ("--seeds=42-43", f"--traces={_VARIANTS}", "--policies=dense,fgd"),
        result="trace_variants",
        trace=True,
    ),
    Program("trace through kube-scheduler's scores", "trace_scheduled", (_SEEDS, "--policies=dense"), trace=True),
    Program(
        "trace through kube-scheduler's scores: pods with owners",
        "trace_scheduled",
        ("--seeds=42-43", "--owned", "--policies=dense", "--rows=ranked,default"),
        result="trace_owned",
        trace=True,
    ),
    Program(
        "trace through kube-scheduler's scores: other policies",
        "trace_scheduled",
        ("--seeds=42-43", "--policies=fgd,binpack", "--rows=ranked"),
        result="trace_policies",
        trace=True,
    ),
    Program(
        "trace through kube-scheduler's scores, by the engine of `gpushare simulate`",
        "trace_simulated",
        (_SEEDS, "--policies=dense", "--rows=ranked,default,most-allocated,most-allocated-ranked"),
        trace=True,
    ),
    Program("trace: pods that ask by ResourceClaims, simulated", "trace_claims", trace=True),
    Program("a day of pods that come and go", "churn", trace=True),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Every measurement, one after another.")
    parser.add_argument("--results", type=Path, default=Path("build/benchmarks"), help="directory of the figures")
    parser.add_argument("--trace", type=Path, help="directory of a trace")
    parser.add_argument("--only", default="", help=f"some of {', '.join(one.name for one in PROGRAMS)}")
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(","))) or {one.name for one in PROGRAMS}
    if unknown := wanted - {one.name for one in PROGRAMS}:
        parser.error(f"--only {','.join(sorted(unknown))}: write some of {', '.join(one.name for one in PROGRAMS)}")
    needing = sorted(one.name for one in PROGRAMS if one.trace and one.name in wanted)
    if options.only and needing and not options.trace:
        parser.error(f"--only {','.join(needing)}: needs --trace DIRECTORY (make bench TRACE=DIRECTORY)")
    programs = [one for one in PROGRAMS if one.name in wanted and (options.trace or not one.trace)]
    for number, program in enumerate(programs, 1):
        print(f"\n== {number} of {len(programs)}: {program.title}", flush=True)
        argv = [sys.executable, "-m", f"bench.{program.module}", *program.arguments]
        argv += [str(options.trace)] if program.trace else []
        began = time.monotonic()
        if subprocess.run([*argv, f"--json={options.results / program.name}.json"], check=False).returncode != 0:
            return 1
        print(f"took {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
