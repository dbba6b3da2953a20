"""Costs of nodes that are kept from pod to pod, and what is learned between."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from bench.packing import board as boards
from bench.packing.board import Board
from gpushare.model.request import Need, Policy
from gpushare.model.room import Ask, GpuRoom, HostRoom, NodeRoom
from gpushare.model.selector import Choice
from gpushare.placement import outlook
from gpushare.placement.dense import Dense
from gpushare.placement.packing import Binpack
from gpushare.placement.policies import Rankings

BINPACK = Rankings(Policy.BINPACK)
HALF = Ask(gpus=1, memory_mib=500)
WHOLE = Ask(gpus=1, whole=True, cpu_milli=10_000)
PAIR = Ask(gpus=2, memory_mib=500)


def node(*free: int, cpu: int = 50_000, model: str = "T4") -> NodeRoom:
    return NodeRoom(model, tuple(sorted(GpuRoom(1000, mib) for mib in free)), HostRoom(cpu, 10**6))


def board_of(rankings: Rankings, **nodes: NodeRoom | None) -> Board[str]:
    board: Board[str] = Board(rankings)
    for name, room in nodes.items():
        board.set(name, room)
    return board


def learned(policy: Policy, nodes: Mapping[str, NodeRoom]) -> Rankings:
    """Where everyone asks for whole GPUs."""
    return Rankings(policy, outlook.of_cluster([WHOLE] * 9, nodes.values(), nodes.values()))


def test_the_fullest_node_is_the_best_of_those_that_are_asked_for() -> None:
    board = board_of(BINPACK, a=node(1000), b=node(500), c=node(400), d=node(700), e=None)
    ranked = board.rank(HALF, None, ["a", "b", "c", "d", "e", "unknown"])
    assert ranked.best == ["b"]
    assert ranked.costs == [500_000_000, 0, None, 200_000_000, None, None]
    assert board.rank(HALF, None, ["d", "a"]).best == ["d"]
    assert board.rank(HALF, Policy.SPREAD, ["d", "a"]).best == ["a"]
    assert board.rank(HALF, None, ["c"]).best == []


def test_nodes_that_are_alike_are_all_the_best() -> None:
    board = board_of(Rankings(Policy.DENSE), a=node(1000), b=node(1000), c=node(500), d=node(500))
    assert board.rank(HALF, None, "ab").best == ["a", "b"]
    assert board.rank(HALF, None, "abcd").best == ["c", "d"]
    assert board.rank(HALF, Policy.BINPACK, "abcd").best == ["c", "d"]


def test_a_node_that_has_changed_or_is_new_or_gone_is_looked_at_again() -> None:
    board = board_of(BINPACK, a=node(500), b=node(700))
    assert board.rank(HALF, None, "ab").best == ["a"]
    board.set("a", node(900))
    board.set("c", node(500))
    board.set("c", node(600))
    assert board.rank(HALF, None, "abc").best == ["c"]
    board.set("c", None)
    assert board.rank(HALF, None, "abc").best == ["b"]
    board.keep({"a"})
    assert board.rank(HALF, None, "abc") == ([400_000_000, None, None], ["a"])


def test_a_node_must_have_the_model_and_the_host_that_the_pod_needs() -> None:
    board = board_of(BINPACK, a=node(500, cpu=0), b=node(700, model="A100"), c=node(700))
    assert board.rank(Ask(gpus=1, memory_mib=1, cpu_milli=1), None, "abc").best == ["b", "c"]
    assert board.rank(Ask(gpus=1, memory_mib=1, models=Choice(wanted=("T4",))), None, "abc").best == ["a"]


def test_several_gpus_are_those_that_lose_the_least() -> None:
    board = board_of(BINPACK, a=node(500, 1000, 1000), b=node(400, 500), c=node(500, 500))
    assert board.rank(PAIR, None, "abc") == ([500_000_000, None, 0], ["c"])


def test_room_for_typical_pods_decides_among_nodes_whose_gpus_lose_the_same() -> None:
    """And is counted again for nodes that have changed, or when typical pods are others."""
    nodes = {"poor": node(1000, cpu=21_000), "rich": node(1000, cpu=50_000)}
    board = board_of(learned(Policy.DENSE, nodes), **nodes)
    little = Ask(cpu_milli=15_000)
    assert board.rank(little, None, list(nodes)).best == ["rich"]
    board.set("rich", node(1000, cpu=20_000))
    board.set("poor", node(1000, cpu=50_000))
    assert board.rank(little, None, list(nodes)).best == ["poor"]
    board.under(Rankings(Policy.DENSE))
    assert board.rank(little, None, list(nodes)).best == ["poor", "rich"]


def test_the_published_policy_looks_at_hosts_as_well() -> None:
    nodes = {"poor": node(1000, 1000, cpu=11_000), "rich": node(1000, 1000, cpu=50_000)}
    assert board_of(learned(Policy.FGD, nodes), **nodes).rank(Ask(cpu_milli=5000), None, list(nodes)).best == ["rich"]


def test_what_was_asked_for_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "MAX_ENTRIES", 4)
    looks: list[int] = []

    def counting(_: Binpack, room: GpuRoom, need: Need) -> int:
        looks.append(need.memory_mib)
        return room.free_mib

    monkeypatch.setattr(Binpack, "gpu", counting)
    board = board_of(BINPACK, a=node(500), b=node(600))
    for mib, looked in ((1, 2), (2, 4), (1, 4), (3, 6), (1, 6), (2, 8)):
        board.rank(Ask(gpus=1, memory_mib=mib), None, "ab")
        assert len(looks) == looked


def test_what_nodes_were_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "_MOST", 0)
    nodes = {"a": node(1000), "b": node(1000, cpu=40_000)}
    rankings = learned(Policy.DENSE, nodes)
    counted: list[NodeRoom] = []
    real = Dense.worth

    def counting(self: Dense, room: NodeRoom) -> int:
        counted.append(room)
        return real(self, room)

    monkeypatch.setattr(Dense, "worth", counting)
    board = board_of(rankings, **nodes)
    for cpu in (30_000, 20_000, 10_000, 5_000, 30_000):
        board.set("a", node(1000, cpu=cpu))
        board.rank(Ask(cpu_milli=1000), None, "ab")
    assert [room.host for room in counted].count(HostRoom(30_000, 10**6)) == 2


def test_what_decides_first_is_kept_while_prices_stay() -> None:
    nodes = {"poor": node(1000, cpu=21_000), "rich": node(1000, cpu=50_000)}
    known = learned(Policy.DENSE, nodes)
    board = board_of(known, **nodes)
    for milli in (15_000, 16_000):
        assert board.rank(Ask(cpu_milli=milli), None, list(nodes)).best == ["rich"]
    board.under(Rankings(Policy.DENSE, replace(known.outlook, weights={}, accepted={})))
    assert board.rank(Ask(cpu_milli=15_000), None, list(nodes)).best == ["poor", "rich"]


def test_what_gpus_lose_is_found_again_when_prices_are_others() -> None:
    nodes = {"a": node(700), "b": node(1000)}
    board = board_of(Rankings(Policy.DENSE), **nodes)
    assert board.rank(HALF, None, "ab").costs == [0, 0]
    known = learned(Policy.DENSE, nodes)
    board.under(known)
    assert board.rank(HALF, None, "ab").costs == board_of(known, **nodes).rank(HALF, None, "ab").costs != [0, 0]
