"""What kube-scheduler asks of an extender, as the benchmarks of filter and prioritize ask it."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import orjson

from bench.generated import GPU_GIB
from gpushare import names
from testing.builders import make_container, make_pod

SAMPLED = 500  # what kube-scheduler asks for at most in large clusters
EACH = 40  # requests of a round
COLD = 4  # requests of a round that are each the first of their kind
FILTER, PRIORITIZE = (f"{names.EXTENDER_PREFIX}/{verb}" for verb in ("filter", "prioritize"))


@dataclass(frozen=True, slots=True)
class Question:
    """One kind, asked again and again."""

    key: str
    text: str
    path: str
    bodies: Callable[[], Iterator[bytes]]
    """Of one round."""


def quiet(count: int) -> list[Question]:
    """While nothing changes."""
    every = [f"node-{i}" for i in range(count)]
    sample = random.Random(1).sample(every, min(SAMPLED, count))
    sizes, cores, parts = itertools.count(1), itertools.count(1), itertools.count(1)

    def same(gib: int, asked: Sequence[str]) -> Callable[[], Iterator[bytes]]:
        data = body(gib, asked)
        return lambda: itertools.repeat(data, EACH)

    def new_sizes(asked: Sequence[str]) -> Callable[[], Iterator[bytes]]:
        return lambda: (body(11 + next(sizes) % 37, asked) for _ in range(COLD))

    def new_kinds() -> Iterator[bytes]:
        return (body(1, sample, core=next(cores)) for _ in range(COLD))

    def new_parts() -> Iterator[bytes]:
        limits = ({names.GPU_PERCENT: str(next(parts))} for _ in range(COLD))
        pods = (make_pod({"name": "main", "resources": {"limits": each}}) for each in limits)
        return (orjson.dumps({"Pod": pod, "NodeNames": sample}) for pod in pods)

    few = f"{len(sample)} names"
    return [
        Question("cold-all", "all names, a size never asked before", FILTER, new_sizes(every)),
        Question("cold", f"{few}, a size never asked before", FILTER, new_sizes(sample)),
        Question("cold-compute", f"{few}, memory and compute never asked before", FILTER, new_kinds),
        Question("cold-part", f"{few}, a part of a GPU never asked before", FILTER, new_parts),
        Question("warm-all", "all names, fits everywhere", FILTER, same(10, every)),
        Question("warm", f"{few}", FILTER, same(10, sample)),
        Question("never", "all names, can never fit", FILTER, same(GPU_GIB + 1, every)),
        Question("prioritize", "prioritize, all names", PRIORITIZE, same(10, every)),
    ]


def changing(count: int, changes: str) -> list[Question]:
    """While pods are bound and go."""
    every, turn = [f"node-{i}" for i in range(count)], itertools.count()

    def kinds() -> Iterator[bytes]:
        return (body(1 + i % 20, every, core=1 + i // 20 % 10) for i in itertools.islice(turn, EACH))

    return [Question("changing", f"all names, 200 sizes in turn, {changes}", FILTER, kinds)]


def body(gib: int, asked: Sequence[str], core: int = 0) -> bytes:
    """A pod with one container, and nodes."""
    container = make_container(gpu_mem=gib)
    if core:
        container["resources"]["limits"][names.GPU_CORE] = str(core)
    return orjson.dumps({"Pod": make_pod(container), "NodeNames": asked})
