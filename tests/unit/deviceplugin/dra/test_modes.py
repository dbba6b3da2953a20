"""By what each GPU is shared, and when that changes."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final

import pytest
from hypothesis import given, strategies as st

from deviceplugin.causes import Cause, Code, code
from deviceplugin.dra.modes import CLAIMS_S, SETTLED_S, Modes, split
from deviceplugin.node import NodeFacts
from gpushare.identity import GpuUuid
from gpushare.model.gpu import Gpu, GpuHealth, HandOver, Mode, NodeInventory
from gpushare.wire.modes import Wanted, parse
from testing.builders import make_inventory
from testing.clock import ManualClock

INVENTORY: Final = replace(make_inventory(16, 16, 16), hand_over=HandOver.CDI)
UUIDS: Final = tuple(gpu.uuid for gpu in INVENTORY.gpus)
DRA, PLUGIN = Mode.DRA, Mode.DEVICE_PLUGIN


def of(found: NodeInventory) -> tuple[list[int], list[int]]:
    """Numbers of the GPUs that gpu-mem and that claims may be given."""
    healthy = (gpu for gpu in found.dra if gpu.health is GpuHealth.HEALTHY)
    return [gpu.index for gpu in found.healthy], [gpu.index for gpu in healthy]


@pytest.mark.parametrize(
    ("text", "modes"),
    [
        ("", [PLUGIN, PLUGIN, PLUGIN]),
        ("dra", [DRA, DRA, DRA]),
        (" dra , A100=device-plugin", [DRA, DRA, DRA]),
        ("device-plugin,Tesla T4=dra", [DRA, DRA, DRA]),
        (f"{UUIDS[1]}=dra", [PLUGIN, DRA, PLUGIN]),
        (f"dra,{UUIDS[0]}=device-plugin,{UUIDS[0]}=dra", [PLUGIN, DRA, DRA]),
    ],
)
def test_the_annotation_names_all_gpus_then_models_and_uuids(text: str, modes: list[Mode]) -> None:
    wanted = parse(text)
    assert [wanted.of(gpu) for gpu in INVENTORY.gpus] == modes


@pytest.mark.parametrize("text", ["mps", "dra,", "=dra", "A100=", "A100=dra,dra", "A100=dra,,B=dra"])
def test_another_text_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write device-plugin or dra for all GPUs"):
        parse(text)


@dataclass
class Node:
    """A node in a test's hands; its plugin reads, and what it publishes is on the Node afterwards."""

    mode: str = ""
    pods: Collection[GpuUuid] | None = ()
    claims: Collection[GpuUuid] | None = ()
    prepared: Collection[GpuUuid] = ()
    is_read: bool = True
    inventory: NodeInventory = INVENTORY
    published: dict[GpuUuid, Mode] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=ManualClock)
    modes: Modes = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.modes = Modes(
            node=lambda: NodeFacts(mode=self.mode, modes=dict(self.published)) if self.is_read else None,
            clock=self.clock,
            pods=lambda _inventory: self.pods,
            claims=lambda _inventory: self.claims,
            prepared=lambda _inventory: self.prepared,
            enabled=True,
        )

    def read(self, after_s: float = 5.0) -> NodeInventory:
        self.clock.at += after_s
        found = self.modes.assess(self.inventory)
        if self.is_read:
            self.published = {gpu.uuid: mode for mode, gpus in found.of_modes.items() for gpu in gpus}
        return found


def test_a_gpu_that_is_new_has_its_mode_at_once() -> None:
    assert of(Node(mode=f"{UUIDS[1]}=dra").read()) == ([0, 2], [1])


@pytest.mark.parametrize("held", [None, {UUIDS[1]}])
def test_one_that_may_be_held_stays_with_gpu_mem_until_it_is_not(held: Collection[GpuUuid] | None) -> None:
    node = Node(mode="dra", pods=held)
    node.read()
    assert UUIDS[1] in {gpu.uuid for gpu in node.read(SETTLED_S).gpus}
    node.pods = ()
    assert of(node.read(0)) == ([], [0, 1, 2])


def test_a_change_closes_a_gpu_and_is_made_when_no_one_has_held_it_for_a_while() -> None:
    node = Node()
    node.read()
    node.mode, node.pods = "dra", {UUIDS[0]}
    found = node.read()
    assert of(found) == ([], [])
    assert {gpu.reason for gpu in found.gpus} == {"its mode changes to dra when no pod holds it any more"}
    assert of(node.read(SETTLED_S - 1)) == ([], [])
    assert of(node.read(1)) == ([], [1, 2])
    node.pods = ()
    assert of(node.read(0)) == ([], [0, 1, 2])
    node.mode, node.claims = "", {UUIDS[2]}
    found = node.read()
    assert (of(found), len(found.dra), code(found.dra[0].reason)) == (([], []), 3, Code.MODE)
    assert of(node.read(SETTLED_S)) == ([0, 1], [])
    node.claims = None  # not known
    assert of(node.read(CLAIMS_S)) == ([0, 1], [])
    node.claims = ()
    assert of(node.read()) == ([0, 1], [])  # not asked again so soon
    assert of(node.read(CLAIMS_S)) == ([0, 1, 2], [])


def test_a_change_that_is_taken_back_opens_the_gpu_and_begins_again() -> None:
    node = Node()
    node.read()
    node.mode = "dra"
    node.read()
    node.mode = ""
    assert of(node.read(SETTLED_S)) == ([0, 1, 2], [])
    node.mode = "dra"
    node.read()
    assert of(node.read(SETTLED_S - 1)) == ([], [])


def test_a_change_waits_until_both_schedulers_were_told_that_the_gpu_is_closed() -> None:
    node = Node()
    node.read()
    told = [1, 2]
    node.modes.version = lambda: 2
    node.modes.told = [lambda: told[0], lambda: told[1]]
    node.mode = "dra"
    node.read()
    assert of(node.read(SETTLED_S * 2)) == ([], [])
    told[0] = 2
    assert of(node.read(SETTLED_S - 1)) == ([], [])
    assert of(node.read(1)) == ([], [0, 1, 2])


def test_what_is_prepared_counts_more_than_what_an_older_version_has_published() -> None:
    node = Node(prepared={UUIDS[0]}, published=dict.fromkeys(UUIDS, PLUGIN))
    assert of(node.read()) == ([1, 2], [])
    node.prepared = ()
    node.read()
    assert of(node.read(SETTLED_S)) == ([0, 1, 2], [])


def test_a_plugin_that_starts_goes_by_what_is_published_and_prepared() -> None:
    node = Node(mode="dra")
    node.read()
    node.mode, node.is_read, node.prepared = "", False, {UUIDS[0]}
    node.start()
    found = node.read()
    assert ([gpu.uuid for gpu in found.dra], node.modes.known) == ([UUIDS[0]], False)
    node.is_read = True
    assert (len(node.read().dra), node.modes.known) == (3, True)


def test_without_claims_gpus_that_have_them_wait_and_others_are_left_alone() -> None:
    node = Node(mode=f"{UUIDS[0]}=dra")
    node.read()
    node.modes.enabled, node.claims = False, None
    assert of(node.read(SETTLED_S * 2)) == ([1, 2], [])


def test_a_text_that_is_not_understood_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(mode=f"{UUIDS[0]}=dra")
    node.read()
    node.mode = "claims"
    assert of(node.read(SETTLED_S * 2)) == ([1, 2], [0])
    assert "mode not read" in caplog.messages


def test_a_node_that_cannot_hand_over_to_claims_says_why() -> None:
    node = Node(mode="dra", inventory=replace(INVENTORY, hand_over=HandOver.ENVVAR, hand_over_reason="too old"))
    assert {(gpu.health, code(gpu.reason)) for gpu in node.read().dra} == {(GpuHealth.UNHEALTHY, Code.DRA)}
    node.inventory = INVENTORY
    node.modes.problem = lambda: "it is off"
    assert {gpu.reason for gpu in node.read().dra} == {"it is off"}


def test_a_faulty_gpu_that_is_to_change_says_both_and_is_not_oversubscribed_for_claims() -> None:
    faulty = replace(INVENTORY.gpus[0], health=GpuHealth.UNHEALTHY, reason=Cause(Code.XID, "Xid 79"), extra_mib=1024)
    found = split(replace(INVENTORY, gpus=(faulty,)), {faulty.uuid: DRA}, Wanted(), ())
    (gpu,) = found.dra
    assert (gpu.reason.partition("; ")[2], code(gpu.reason), gpu.extra_mib) == ("Xid 79", Code.MODE, 0)


_SOME = st.sets(st.sampled_from(UUIDS))


@given(steps=st.lists(st.tuples(st.sets(st.sampled_from(UUIDS)), _SOME, st.booleans(), st.booleans()), max_size=30))
def test_no_gpu_that_is_held_by_one_side_is_ever_open_to_the_other(
    steps: list[tuple[set[GpuUuid], set[GpuUuid], bool, bool]],
) -> None:
    """Whatever is wanted, by pods and claims that come where they may and end when they like, over restarts."""
    node = Node()
    pods: set[GpuUuid] = set()
    claims: set[GpuUuid] = set()
    none = frozenset[GpuUuid]()
    late = deque([(none, none)] * 3)  # what schedulers decide by what they know is seen here three readings later
    for wanted, ends, restarts, is_read in steps:
        node.mode = ",".join(f"{uuid}=dra" for uuid in sorted(wanted))
        came = late.popleft()
        pods, claims = (pods - ends) | came[0], (claims - ends) | came[1]
        node.pods, node.claims, node.prepared, node.is_read = pods, claims, claims, is_read
        if restarts:
            node.start()
        before = dict(node.published)
        found = node.read()
        assert not pods & {gpu.uuid for gpu in found.dra}
        assert not claims & {gpu.uuid for gpu in found.gpus}
        assert {*_uuids(found.gpus), *_uuids(found.dra)} == {*UUIDS}
        open_to_claims = {gpu.uuid for gpu in found.dra if gpu.health is GpuHealth.HEALTHY}
        decided = (frozenset(_uuids(found.healthy)), frozenset(open_to_claims))
        late.append(decided if is_read and before else (none, none))


def _uuids(gpus: tuple[Gpu, ...]) -> list[GpuUuid]:
    return [gpu.uuid for gpu in gpus]
