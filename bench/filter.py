"""Filter and prioritize over HTTP, beside the floor (`bench.floor`), with an API server in memory: `bench.server` in
seconds, for work on the code. Prints a table, asserts nothing.

python -m bench.filter [--json FILE] [NODES ...]
"""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import changes, floor, generated, interleaved, questions
from bench.results import Results
from bench.scheduling import fed
from bench.scheduling.fed import Link
from bench.servers import serving

PODS = 4  # for each node, which are in memory


def measure(nodes: int, results: Results) -> None:
    """One size of cluster."""
    made = [generated.node(number) for number in range(nodes)]
    pods = [generated.gpu_pod(number, nodes) for number in range(nodes * PODS)]
    with fed.controller(made, pods=pods) as link, serving(floor.answer) as lower:
        interleaved.ask_all(questions.quiet(nodes), nodes, link.side, lower, results)
        with _changes(link, nodes):
            asked = questions.changing(nodes, changes.TEXT)
            interleaved.ask_all(asked, nodes, link.side, lower, results)


@contextlib.contextmanager
def _changes(link: Link, nodes: int) -> Iterator[None]:
    own = link.another()

    def create(number: int) -> str:
        pod = generated.gpu_pod(number, nodes)
        own.create(pod)
        return str(pod["metadata"]["name"])

    with changes.going_on(itertools.count(nodes * PODS), create, own.delete):
        yield


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.filter", description="Filter and prioritize, API server in memory"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("nodes", type=int, nargs="*", default=[100, 1000, 5000])
    arguments = parser.parse_args()
    results = Results("filter", arguments.json)
    print(interleaved.HEAD, flush=True)
    for nodes in arguments.nodes:
        measure(nodes, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
