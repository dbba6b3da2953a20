"""The scheduler of the benchmarks: which extenders it asks, and what it makes of their answers."""

from typing import Any

import orjson
import pytest

from bench.scheduling import configuration
from bench.scheduling.configuration import Configuration, Extender
from bench.scheduling.objects import pod
from bench.scheduling.scheduler import Scheduler, UnansweredError
from gpushare import names
from gpushare.model.room import Ask, HostRoom

GPU_POD, CPU_POD = Ask(gpus=1, memory_mib=500, cpu_milli=1000, host_mib=1000), Ask(cpu_milli=1000, host_mib=1000)
VERBS = {"filter_verb": "filter", "prioritize_verb": "prioritize", "bind_verb": "bind"}
OURS = Extender(path="/x", weight=1, resources=frozenset({names.GPU_MEM}), **VERBS)
RANKS_ALL = Extender(path="/y", prioritize_verb="rank", weight=30)


class Answers:
    """Extenders that are asked about nodes a, b and c."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.bound: list[str] = []

    def ask(self, path: str, body: bytes) -> bytes:
        self.asked.append(path)
        if path.endswith("/bind"):
            self.bound.append(orjson.loads(body)["Node"])
            return b'{"Error":""}'
        if (answer := self.answers.get(path.rpartition("/")[2])) is None:
            raise UnansweredError(path)
        return orjson.dumps(answer)

    def bind(self, pod: Any, node: str) -> None:
        self.bound.append(node)


def scheduler(answers: Answers, *extenders: Extender, packs: bool = False) -> Scheduler:
    return Scheduler(
        names="abc",
        has=[HostRoom(8000, 8000), HostRoom(4000, 4000), HostRoom(4000, 4000)],
        configuration=Configuration(extenders=extenders, packs=packs),
        transport=answers,
        seed=1,
    )


def fits(*nodes: str) -> Any:
    return {"NodeNames": list(nodes), "Error": ""}


def scored(**given: int) -> Any:
    return [{"Host": node, "Score": score} for node, score in given.items()]


def test_the_best_node_of_all_scores_is_bound_by_the_extender() -> None:
    answers = Answers(filter=fits("a", "b"), prioritize=scored(a=0, b=10))
    assert scheduler(answers, OURS).schedule(pod("p", GPU_POD), GPU_POD.host).node == 1
    assert answers.asked == ["/x/filter", "/x/prioritize", "/x/bind"]
    assert answers.bound == ["b"]


def test_an_error_of_an_extender_ends_the_run() -> None:
    answers = Answers(filter={"NodeNames": None, "Error": "not ready"})
    with pytest.raises(RuntimeError, match="filter: not ready"):
        scheduler(answers, OURS).schedule(pod("p", GPU_POD), GPU_POD.host)


def test_pods_without_gpus_are_told_to_extenders_without_resources_alone() -> None:
    answers = Answers(rank=scored(a=0, b=0, c=10))
    assert scheduler(answers, OURS, RANKS_ALL).schedule(pod("p", CPU_POD), CPU_POD.host).node == 2
    assert answers.asked == ["/y/rank"]
    assert answers.bound == ["c"]


def test_the_printed_configuration_is_understood() -> None:
    [ours] = configuration.printed("1.36").extenders
    assert (ours.path, ours.filter_verb, ours.bind_verb) == (names.EXTENDER_PREFIX, "filter", "bind")
    assert ours.is_asked(pod("p", GPU_POD))
    assert ours.is_asked(pod("p", Ask(gpus=2, whole=True)))
    assert not ours.is_asked(pod("p", CPU_POD))
    assert configuration.printed("1.36").without_ranking().extenders[0].prioritize_verb == ""


def test_others_are_ranked_by_an_entry_of_their_own() -> None:
    [ours, others] = configuration.printed("1.36", rank_others=True).extenders
    assert not others.filter_verb
    assert not others.bind_verb
    assert others.is_asked(pod("p", CPU_POD))
    assert ours.weight > 1


@pytest.mark.parametrize("server", ["1.20", "1.36"])
def test_most_allocated_is_read_from_plugins_or_their_arguments(server: str) -> None:
    assert configuration.printed(server, most_allocated=True).packs
    assert not configuration.printed(server).packs
