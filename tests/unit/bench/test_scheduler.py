"""The scheduler of the benchmarks: what `tests/integration/bench` does not show of it."""

from typing import Any

import pytest

from bench.scheduling import configuration
from bench.scheduling.configuration import Configuration, Extender
from bench.scheduling.objects import pod
from bench.scheduling.scheduler import Scheduler
from gpushare import names
from gpushare.model.capacity import Ask, FreeHost

GPU_POD = Ask(gpus=1, memory_mib=500, cpu_milli=1000, host_mib=1000)


class Failing:
    def ask(self, path: str, _body: bytes) -> bytes:
        assert path == "/x/filter"
        return b'{"NodeNames":null,"Error":"not ready"}'

    def bind(self, pod: Any, node: str) -> None:
        raise AssertionError(f"{pod} is bound to {node}")


def test_an_error_of_an_extender_ends_the_run() -> None:
    extender = Extender(path="/x", weight=1, resources=frozenset({names.GPU_MEM}), filter_verb="filter")
    asking = Configuration(extenders=(extender,), packs=False)
    scheduler = Scheduler(names="ab", has=[FreeHost(8000, 8000)] * 2, configuration=asking, transport=Failing(), seed=1)
    with pytest.raises(RuntimeError, match="filter: not ready"):
        scheduler.schedule(pod("p", GPU_POD), GPU_POD.host)


@pytest.mark.parametrize("server", ["1.20", "1.36"])
def test_most_allocated_is_read_from_plugins_or_their_arguments(server: str) -> None:
    assert configuration.printed(server, most_allocated=True).packs
    assert not configuration.printed(server).packs
