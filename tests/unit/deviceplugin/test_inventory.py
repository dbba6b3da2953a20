"""From readings of the GPUs to the node's inventory, and to the devices that its kubelet is told."""

import itertools
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pytest
from hypothesis import given, strategies as st

from deviceplugin import inventory, resources, server
from deviceplugin.causes import Cause, Code, code
from deviceplugin.inventory import Factors, HealthLoop, InventoryFeed, Oversubscription, PostedInventory
from deviceplugin.resources import MEMORY, PERCENT, WHOLE, Advertisement
from deviceplugin.source import GpuSourceError, OutdatedLibraryError, RawGpu
from gpushare.errors import SettingsError
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import Gpu, GpuHealth, LeftOut, Limit, MigInstance, NodeInventory, mig_index
from gpushare.units import GIB, MemoryUnit
from testing.builders import make_gpu, make_inventory, make_mig
from testing.clock import ManualClock
from testing.deviceplugin.build import NODE, fields_of, raw_gpu
from testing.deviceplugin.running import feed_with
from tests.unit.deviceplugin import golden


def build(*raw: RawGpu, previous: NodeInventory | None = None, unit: MemoryUnit = GIB) -> NodeInventory:
    return inventory.build(raw, node=NODE, unit=unit, previous=previous)


def healths(found: NodeInventory) -> dict[str, str]:
    return {gpu.uuid: gpu.health.value for gpu in found.gpus}


def test_memory_is_rounded_down_to_whole_mib() -> None:
    raw = RawGpu(uuid="GPU-x", index=3, model="Tesla T4", memory_bytes=15109 * 1024**2 + 1024**2 - 1, numa=1)
    assert build(raw).gpus == (Gpu(uuid=GpuUuid("GPU-x"), index=3, model="Tesla T4", memory_mib=15109, numa=1),)


def test_gpus_are_ordered_by_their_number_and_the_unhealthy_ones_have_their_reason() -> None:
    found = build(raw_gpu(1, fault="Xid 79"), raw_gpu(0), previous=build(raw_gpu(0), raw_gpu(1), raw_gpu(2)))
    assert healths(found) == {"GPU-0": "Healthy", "GPU-1": "Unhealthy", "GPU-2": "Unhealthy"}
    assert [gpu.index for gpu in found.gpus] == [0, 1, 2]
    assert [gpu.reason for gpu in found.gpus] == ["", "Xid 79", "the driver does not list it any more"]
    assert [code(gpu.reason) for gpu in found.gpus] == ["", Code.XID, Code.NOT_LISTED]


def test_a_gpu_that_disappears_stays_until_it_comes_back_or_another_one_has_its_number() -> None:
    before = build(raw_gpu(0), raw_gpu(1))
    gone = build(raw_gpu(0, uuid="GPU-new"), previous=before)
    assert healths(gone) == {"GPU-new": "Healthy", "GPU-1": "Unhealthy"}
    assert gone.total_units == before.total_units
    assert build(raw_gpu(0), raw_gpu(1), previous=gone) == before


@pytest.mark.parametrize(("unit", "mib"), [(GIB, 4096), (MemoryUnit(1), 4864), (MemoryUnit(8192), 4864)])
def test_who_asks_for_all_units_of_a_mig_instance_has_all_of_it(unit: MemoryUnit, mib: int) -> None:
    """Nothing is left of it that another container could be given, so the hardware holds the limit."""
    mig = MigInstance(gpu=0, number=1, profile="1g.5gb")
    raw = RawGpu(uuid="MIG-x", index=mig_index(0, 1), model="A MIG 1g.5gb", memory_bytes=4864 * 1024**2, mig=mig)
    (found,) = build(raw, unit=unit).gpus
    assert (found.index, found.label, found.limit, found.mig, found.memory_mib) == (65, "0:1", Limit.MIG, mig, mib)
    if units := unit.floor(mib):
        assert found.limit_of(units * unit.mib) is Limit.MIG


INVENTORY: Final = make_inventory(16, 8)
EVERYTHING = resources.offered(percent=True, whole_gpus=True)


def grantable(inventory: NodeInventory) -> list[int]:
    return [gpu.grantable_mib for gpu in inventory.gpus]


def mixed() -> NodeInventory:
    gpus = (make_gpu(0, 16), replace(make_gpu(1, 80), model="NVIDIA A100-SXM4-80GB"), make_mig(2, 0, 10))
    return replace(INVENTORY, gpus=gpus)


@pytest.mark.parametrize(
    ("text", "gib"),
    [
        ("1", [16, 80, 10]),
        ("1.5", [24, 120, 10]),
        ("2.25", [36, 180, 10]),
        ("T4=1.5", [24, 80, 10]),
        ("1.2, tesla t4 = 2, A100=1.1", [32, 88, 10]),
        ("A100=1.1,A100=3", [16, 88, 10]),
    ],
)
def test_a_factor_counts_for_all_gpus_or_for_those_of_a_model_but_for_no_mig_instance(
    text: str, gib: list[int]
) -> None:
    setting = inventory.parse_factors(text)
    found, problem = inventory.oversubscribed(mixed(), setting, "")
    assert ([mib // 1024 for mib in grantable(found)], problem) == (gib, "")
    assert inventory.parse_factors(str(setting)) == setting


def test_a_setting_that_cannot_be_read_says_what_is_right() -> None:
    texts = ("", "0.9", "1.555", "10.01", "T4=x", "T4=1.5,2", "=2")
    golden.compare("factors", (golden.error(ValueError, inventory.parse_factors, text) for text in texts))


def test_the_label_of_the_node_overrides_the_setting_for_all_its_gpus() -> None:
    setting = inventory.parse_factors("3,T4=2")
    assert grantable(inventory.oversubscribed(INVENTORY, setting, "1.5")[0]) == [24 * 1024, 12 * 1024]
    assert grantable(inventory.oversubscribed(INVENTORY, setting, "1")[0]) == [16 * 1024, 8 * 1024]


def test_a_label_that_cannot_be_read_oversubscribes_nothing_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    part = Oversubscription(setting=Factors(200), label=lambda: "much")
    assert [part.assess(INVENTORY) for _ in range(2)] == [INVENTORY, INVENTORY]
    assert [record.message for record in caplog.records] == ["label not read"]


def test_before_the_node_was_read_the_kubelet_knows_its_devices_and_no_one_else_is_told() -> None:
    label: list[str | None] = [None]
    part = Oversubscription(setting=Factors(200), label=lambda: label[0])
    guessed = part.assess(INVENTORY)
    assert grantable(guessed) == [32 * 1024, 16 * 1024]
    assert not part.agrees(guessed)
    label[0] = "1.5"
    assert not part.agrees(guessed)
    assert part.agrees(part.assess(guessed))
    label[0] = ""
    assert part.agrees(guessed)


def test_the_kubelet_counts_what_may_be_granted_and_compute_and_whole_gpus_as_before() -> None:
    oversubscribed, _ = inventory.oversubscribed(INVENTORY, Factors(150), "")
    before, after = ([resources.devices(each, one) for one in EVERYTHING] for each in (INVENTORY, oversubscribed))
    assert [len(found.healthy) for found in before] == [24, 200, 2]
    assert [len(found.healthy) for found in after] == [36, 200, 2]
    # Running pods keep their devices when the factor rises, and as many as there are still when it falls.
    assert after[0].healthy[:24] == before[0].healthy


def test_too_many_units_are_refused_with_the_unit_that_fits() -> None:
    found = make_inventory(16, unit=MemoryUnit(1), node=NODE)
    resources.devices(found, MEMORY)
    with pytest.raises(SettingsError, match="--memory-unit=2MiB would fit"):
        resources.devices(inventory.oversubscribed(found, Factors(200), "")[0], MEMORY)


def test_a_newer_snapshot_is_given_at_once_and_no_one_waits_longer_than_he_wants() -> None:
    feed = feed_with()
    found = feed.newer(0, over=lambda: False)
    assert found is feed.latest
    assert found is not None
    assert found.version == 1
    assert feed.newer(1, over=lambda: False, seconds=0.01) is None
    assert InventoryFeed().newer(0, over=lambda: False, seconds=0.01) is None
    assert feed.newer(0, over=lambda: True) is None


Reading = Sequence[RawGpu] | GpuSourceError
BROKEN = GpuSourceError("no driver")
OUTDATED = OutdatedLibraryError("other versions", reason=Cause(Code.DRIVER_CHANGED, "outdated"))
ONE = (raw_gpu(0),)
WELL, SICK = ["Healthy"], ["Unhealthy"]


@dataclass
class ScriptedSource:
    """Gives one reading after the other, then repeats the last and stops the loop."""

    readings: list[Reading]
    waits: list[float] = field(default_factory=list)
    closed: int = 0
    left_out: Sequence[LeftOut] = ()

    def read(self) -> Sequence[RawGpu]:
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if isinstance(reading, GpuSourceError):
            raise reading
        return reading

    def wait(self, stop: threading.Event, seconds: float) -> None:
        self.waits.append(seconds)
        if len(self.readings) == 1:
            stop.set()

    def close(self) -> None:
        self.closed += 1


class Scene:
    """Args: works: what each look for a new process finds."""

    def __init__(self, *readings: Reading, unit: MemoryUnit = GIB, works: Sequence[bool] = ()) -> None:
        self.source, self.clock, looks = ScriptedSource(list(readings)), ManualClock(), list(works)
        self.loop = HealthLoop(
            source=self.source,
            feed=InventoryFeed(),
            clock=self.clock,
            node=NODE,
            unit=unit,
            offered=[MEMORY],
            poll_s=5.0,
            new_process_works=lambda: bool(looks and looks.pop(0)),
        )

    def run(self) -> threading.Event:
        stop = threading.Event()
        self.loop.run(stop)
        return stop

    def polls(self, times: int = 1) -> list[bool]:
        return [self.loop.poll() for _ in range(times)]

    @property
    def latest(self) -> PostedInventory:
        assert self.loop.feed.latest is not None
        return self.loop.feed.latest

    @property
    def healths(self) -> list[str]:
        return [gpu.health.value for gpu in self.latest.inventory.gpus]

    def healths_after(self, polls: int) -> list[list[str]]:
        return [self.healths for _ in range(polls) if self.loop.poll()]


def test_only_changes_are_posted_each_with_its_devices(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    scene = Scene([raw_gpu(0, 3)], [raw_gpu(0, 3)], [raw_gpu(0, 3, fault="Xid 79")])
    assert scene.polls() == [True]
    assert [scene.latest.version for _ in range(3) if scene.loop.poll()] == [1, 2, 2]
    told = [(line["healthy_units"], line["faults"]) for line in fields_of(caplog, "gpus changed")]
    assert told == [(3, {}), (0, {"GPU-0": "Xid 79"})]


def test_a_node_without_a_driver_is_asked_again_and_never_shown_as_empty(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(BROKEN, BROKEN, [], ONE)
    scene.run()
    assert (scene.healths, scene.source.closed, scene.source.waits) == (WELL, 1, [5.0])
    assert [line["error"] for line in fields_of(caplog, "gpus unreadable")] == [
        "no driver",
        "there is no GPU that can be shared; run this plugin on GPU nodes only",
    ]
    first, second, third = scene.clock.waits
    assert first < second < third <= 2.0


def test_a_driver_that_fails_for_a_moment_changes_nothing_and_one_that_comes_back_heals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(ONE, BROKEN, BROKEN, ONE, BROKEN, BROKEN, BROKEN, BROKEN, ONE)
    assert scene.healths_after(9) == [WELL] * 6 + [SICK] * 2 + [WELL]
    assert [line["error"] for line in fields_of(caplog, "gpus unreadable")] == ["no driver"] * 3  # also when it counts


def test_the_loop_ends_as_soon_as_a_new_process_would_read_the_gpus(caplog: pytest.LogCaptureFixture) -> None:
    assert Scene(ONE, OUTDATED, works=[False, True]).polls(3) == [True, True, False]
    assert [line["error"] for line in fields_of(caplog, "new process needed")] == ["other versions"]


def test_a_container_that_has_the_old_library_for_ever_ends_after_a_while() -> None:
    scene = Scene(*[OUTDATED] * 100)
    assert not scene.run().is_set()
    assert 20 <= scene.clock.at - 1000 <= 25  # asked every 5 s


def test_a_driver_that_is_replaced_is_looked_for_more_often_than_one_that_is_not_there() -> None:
    scene = Scene(*[BROKEN] * 10, *[OUTDATED] * 10, works=[False, True])
    scene.run()
    assert max(scene.clock.waits[:10]) > 5.0
    assert max(scene.clock.waits[10:]) == 5.0


def test_a_library_that_fits_again_gives_the_process_its_time_again() -> None:
    scene = Scene(ONE, OUTDATED, ONE, OUTDATED, ONE)
    for outdated in (False, True, False, True):
        assert scene.polls() == [True]
        assert scene.loop.library_outdated is outdated
        scene.clock.at += 15


def test_gpus_that_cannot_be_shared_are_in_the_inventory_or_the_reason_that_there_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene([raw_gpu(0), raw_gpu(1, uuid="GPU-0")], [], ONE)
    scene.source.left_out = [LeftOut(index=1, reason="in MIG mode without instances")]
    assert scene.polls(2) == [True, True]
    assert scene.loop.feed.latest is None
    scene.polls()
    assert [line["error"] for line in fields_of(caplog, "gpus unreadable")] == [
        "node node-a: two GPUs with the same UUID or index; the GPU source is broken",
        "there is no GPU that can be shared; GPU 1: in MIG mode without instances",
    ]
    assert scene.latest.inventory.left_out == tuple(scene.source.left_out)


def test_gpus_that_all_disappear_or_cannot_be_read_are_unhealthy_and_have_the_cause_as_their_reason() -> None:
    assert Scene(ONE, []).healths_after(2) == [WELL, SICK]
    scene = Scene(ONE, OUTDATED)
    scene.polls(4)
    assert [gpu.reason for gpu in scene.latest.inventory.gpus] == ["outdated"]
    assert [code(gpu.reason) for gpu in scene.latest.inventory.gpus] == [Code.DRIVER_CHANGED]


def test_a_unit_that_does_not_fit_the_gpus_ends_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene([raw_gpu(0, 80)], unit=MemoryUnit(1))
    scene.run()
    assert (scene.loop.feed.latest, scene.source.closed) == (None, 1)
    (line,) = fields_of(caplog, "gpus cannot be advertised")
    assert line["error"].endswith("--memory-unit=8MiB would fit")


def test_gpus_that_are_added_beyond_what_fits_leave_the_rest_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene([raw_gpu(0, 10)], [raw_gpu(0, 10), raw_gpu(1, 80)], unit=MemoryUnit(1))
    assert scene.healths_after(3) == [WELL] * 3
    assert len(fields_of(caplog, "gpus cannot be advertised")) == 1


def test_memory_is_always_offered() -> None:
    offered = [
        resources.offered(percent=percent, whole_gpus=whole) for percent in (False, True) for whole in (False, True)
    ]
    assert offered == [(MEMORY,), (MEMORY, WHOLE), (MEMORY, PERCENT), (MEMORY, PERCENT, WHOLE)]


def test_a_resource_knows_its_own_devices_from_those_of_other_resources_and_plugins() -> None:
    for number, resource in itertools.product((0, 1, 35, 36, 1295, 1296, 19_999, 46_655), (MEMORY, PERCENT, WHOLE)):
        own = [each for each in (MEMORY, PERCENT, WHOLE) if each.is_own_id(resource.device(number))]
        assert own == [resource], number
    others = ("GPU-3b1f7a9e-3c1f-4c1d-8f57-0d8f4f0e1a2b-_-11", "nano-0-07", "nano", "G000", "p000")
    for device in ("", "g", "g00", "g0000", "g00A", "g00\u0661", *others):
        assert not MEMORY.is_own_id(device), device


HEALTH = st.sampled_from(GpuHealth)


@given(st.lists(st.tuples(st.integers(0, 99_999), HEALTH), min_size=1, max_size=8), st.sampled_from([1, 64, 256, 1024]))
def test_ids_are_short_unique_opaque_and_as_many_as_the_units(gpus: list[tuple[int, GpuHealth]], mib: int) -> None:
    built = tuple(make_gpu(i, mib=memory, health=health) for i, (memory, health) in enumerate(gpus))
    inventory = NodeInventory(node=NodeName("node-a"), gpus=built, unit=MemoryUnit(mib))
    units = sum(gpu.grantable_mib // mib for gpu in built)
    if not 0 < units <= resources.MAX_DEVICES:
        with pytest.raises(SettingsError):
            resources.devices(inventory, MEMORY)
        return
    found = resources.devices(inventory, MEMORY)
    ids = found.healthy + found.unhealthy
    assert len(set(ids)) == len(ids) == units
    assert all(re.fullmatch("g[0-9a-z]{3}", device) for device in ids)
    assert len(found.unhealthy) == sum(
        inventory.unit.floor(gpu.memory_mib) for gpu in built if gpu.health is not GpuHealth.HEALTHY
    )


def test_the_largest_list_is_far_below_what_a_kubelet_can_receive() -> None:
    inventory = make_inventory(resources.MAX_DEVICES)
    message = server.device_list(resources.devices(inventory, MEMORY)).SerializeToString()
    assert len(message) < 400_000


def test_what_makes_too_many_devices_or_none_is_refused_with_what_to_do() -> None:
    asked = [
        (make_inventory(*[80] * 8, unit=MemoryUnit.parse("MiB")), MEMORY),
        (make_inventory(*[140] * 8, unit=MemoryUnit.parse("32MiB")), MEMORY),
        (make_inventory(20, unit=MemoryUnit.parse("MiB")), MEMORY),
        (make_inventory(15, 15, unit=MemoryUnit.parse("16GiB")), MEMORY),
        (make_inventory(*[15] * 201), PERCENT),
    ]
    golden.compare("devices", (golden.error(SettingsError, resources.devices, *each) for each in asked))


def test_every_resource_has_its_devices_of_every_gpu() -> None:
    gpus = (make_gpu(0, 2), make_gpu(1, 3, health=GpuHealth.UNHEALTHY), make_gpu(2, 1))
    known = NodeInventory(node=NodeName("node-a"), gpus=gpus, unit=GIB)
    memory, percent, whole = (resources.devices(known, resource) for resource in EVERYTHING)
    assert memory == Advertisement(healthy=("g000", "g001", "g005"), unhealthy=("g002", "g003", "g004"))
    assert (len(percent.healthy), len(percent.unhealthy)) == (200, 100)
    assert (percent.healthy[0], percent.unhealthy[0], percent.unhealthy[-1]) == ("p000", "p02s", "p05j")
    assert whole == Advertisement(healthy=("w000", "w002"), unhealthy=("w001",))


def test_the_limit_counts_for_each_resource_by_itself() -> None:
    known = make_inventory(*[100] * 199)
    assert [len(resources.devices(known, one).healthy) for one in EVERYTHING] == [19_900, 19_900, 199]
