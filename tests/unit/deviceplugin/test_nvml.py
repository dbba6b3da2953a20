"""GPUs as the driver tells of them, and its faults."""

import logging
import threading
from pathlib import Path

import pytest

from deviceplugin.nvml import binding
from deviceplugin.nvml.source import NvmlSource
from deviceplugin.source import GpuSourceError, RawGpu
from testing.deviceplugin.build import ManualClock, fields_of
from tests.unit.deviceplugin.fake_nvml import Card, FakeNvml, NVMLError


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def driver() -> FakeNvml:
    return FakeNvml([Card(uuid="GPU-a"), Card(uuid="GPU-b")])


@pytest.fixture
def source(driver: FakeNvml, clock: ManualClock, tmp_path: Path) -> NvmlSource:
    return NvmlSource(nvml=driver, clock=clock, pci_devices=tmp_path)


def faults(source: NvmlSource) -> dict[str, str]:
    return {gpu.uuid: gpu.fault for gpu in source.read()}


def test_the_maintained_binding_has_all_that_is_called() -> None:
    real = binding.library()
    assert [name for name in dir(FakeNvml) if name.startswith(("nvml", "NVML")) and not hasattr(real, name)] == []


def test_a_gpu_is_read_with_its_numa_node(source: NvmlSource, tmp_path: Path) -> None:
    slot = tmp_path / "0000:3b:00.0"
    slot.mkdir()
    (slot / "numa_node").write_text("1\n")
    assert source.read()[0] == RawGpu(
        uuid="GPU-a", index=0, model="Tesla T4", memory_bytes=15109 * 1024 * 1024, numa=1, minor=0
    )


@pytest.mark.parametrize("text", ["-1\n", "", "none"])
def test_a_machine_without_numa_nodes_is_no_problem(source: NvmlSource, tmp_path: Path, text: str) -> None:
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "numa_node").write_text(text)
    assert source.read()[0].numa is None


def test_older_bindings_return_bytes(clock: ManualClock, tmp_path: Path) -> None:
    card = Card(uuid=b"GPU-a", name=b"Tesla K80", bus=b"00000000:3B:00.0")
    (gpu,) = NvmlSource(nvml=FakeNvml([card]), clock=clock, pci_devices=tmp_path).read()
    assert (gpu.uuid, gpu.model) == ("GPU-a", "Tesla K80")


def test_a_missing_driver_is_explained_and_asked_again(source: NvmlSource, driver: FakeNvml) -> None:
    driver.broken = "NVML Shared Library Not Found"
    with pytest.raises(GpuSourceError) as caught:
        source.read()
    assert str(caught.value) == (
        "the NVIDIA driver does not answer (NVML Shared Library Not Found); is the driver installed on the node, and is"
        " its library mounted into this container (runtimeClassName nvidia, or the driver's directory as a volume)?"
    )
    driver.broken = ""
    assert len(source.read()) == 2


def test_a_driver_that_goes_away_is_opened_again(source: NvmlSource, driver: FakeNvml) -> None:
    source.read()
    driver.broken = "Driver Not Loaded"
    with pytest.raises(GpuSourceError):
        source.read()
    driver.broken = ""
    assert len(source.read()) == 2
    assert (driver.open, driver.sets) == (1, 1)


def test_what_was_opened_is_given_back_once(source: NvmlSource, driver: FakeNvml) -> None:
    source.close()
    source.read()
    source.close()
    source.close()
    assert (driver.open, driver.sets) == (0, 0)


def test_a_gpu_in_mig_mode_without_instances_is_left_out_and_named_once(
    source: NvmlSource, driver: FakeNvml, caplog: pytest.LogCaptureFixture
) -> None:
    driver.cards[0].mig, driver.cards[1].mig = 1, 0
    assert list(faults(source)) == ["GPU-b"]
    source.read()
    assert fields_of(caplog, "gpu left out") == [
        {
            "index": 0,
            "reason": "in MIG mode without instances; nvidia-smi mig -cgi makes some, nvidia-smi -mig 0 turns it off",
        }
    ]


def test_a_gpu_that_does_not_answer_is_left_out_and_the_others_keep_their_numbers(
    source: NvmlSource, driver: FakeNvml, caplog: pytest.LogCaptureFixture
) -> None:
    driver.cards[0].lost = True
    assert [(gpu.uuid, gpu.index) for gpu in source.read()] == [("GPU-b", 1)]
    assert fields_of(caplog, "gpu left out") == [{"index": 0, "reason": "the driver says: GPU is lost"}]


def test_a_critical_error_makes_its_gpu_unhealthy_at_once_and_for_good(
    source: NvmlSource, driver: FakeNvml, clock: ManualClock
) -> None:
    source.read()
    driver.happen(driver.cards[1], data=79)
    before = clock.seconds
    source.wait(threading.Event(), 5.0)
    assert clock.seconds == before
    assert faults(source) == {"GPU-a": "", "GPU-b": "Xid 79: GPU has fallen off the bus"}
    assert faults(source) == {"GPU-a": "", "GPU-b": "Xid 79: GPU has fallen off the bus"}


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_errors_of_programs_do_not_make_a_gpu_unhealthy(source: NvmlSource, driver: FakeNvml, xid: int) -> None:
    source.read()
    driver.happen(driver.cards[0], data=xid)
    driver.happen(driver.cards[1], kind=2)
    source.wait(threading.Event(), 5.0)
    assert faults(source) == {"GPU-a": "", "GPU-b": "uncorrectable memory error (ECC)"}


def test_a_gpu_without_fault_events_is_shared_all_the_same(
    driver: FakeNvml, source: NvmlSource, caplog: pytest.LogCaptureFixture
) -> None:
    driver.cards[0].events = False
    assert len(source.read()) == 2
    source.read()
    assert fields_of(caplog, "no fault events") == [{"gpu": "GPU-a", "error": "Not Supported"}]


def test_a_driver_without_events_is_only_read(
    driver: FakeNvml, source: NvmlSource, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    driver.event_sets = False
    assert len(source.read()) == 2
    source.wait(threading.Event(), 3.0)
    assert clock.waits == [3.0]
    source.close()
    assert driver.open == 0
    assert fields_of(caplog, "no fault events") == [{"error": "Not Supported"}]


def test_waiting_looks_for_the_stop_in_between(driver: FakeNvml, source: NvmlSource, clock: ManualClock) -> None:
    stop = threading.Event()
    source.read()
    driver.on_wait = lambda milliseconds: clock.wait(stop, milliseconds / 1000)
    source.wait(stop, 1.2)
    assert [round(seconds, 1) for seconds in clock.waits] == [0.5, 0.5, 0.2]
    stop.set()
    source.wait(stop, 1.2)
    assert len(clock.waits) == 3


def test_failing_events_lead_to_a_new_start_at_the_next_reading(
    driver: FakeNvml, source: NvmlSource, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    source.read()
    for _ in range(2):
        driver.pending.append(NVMLError("GPU is lost"))
        source.wait(threading.Event(), 3.0)
        assert driver.open == 0
        assert len(source.read()) == 2
        assert driver.open == 1
    assert clock.waits == [3.0, 3.0]
    assert fields_of(caplog, "fault events failed") == [{"error": "GPU is lost"}]


def test_without_a_driver_waiting_is_plain(source: NvmlSource, driver: FakeNvml, clock: ManualClock) -> None:
    source.wait(threading.Event(), 3.0)
    assert clock.waits == [3.0]


def test_a_driver_that_fails_while_it_is_closed_is_only_noted(
    source: NvmlSource, driver: FakeNvml, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    source.read()
    driver.broken = "Uninitialized"
    source.close()
    assert fields_of(caplog, "nvml not closed") == [{"error": "Uninitialized"}] * 2
