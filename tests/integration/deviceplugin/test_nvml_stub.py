"""The real NVML binding over a library in C, and what the plugin reads through it."""

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.causes import NONE, Code, code
from deviceplugin.nvml import driver
from deviceplugin.nvml.driver import Deadline
from deviceplugin.nvml.source import NvmlSource
from deviceplugin.source import GpuSourceError, OutdatedLibraryError, RawGpu
from gpushare.model.gpu import MigInstance
from gpushare.runtime.clock import SystemClock
from testing.clock import ManualClock
from testing.deviceplugin.build import fields_of
from testing.nvml import stub
from testing.nvml.stub import MIB, Stub


@pytest.fixture
def source(nvml_binding: Any, tmp_path: Path) -> NvmlSource:
    minors = tmp_path / "mig-minors"
    lines = ["config 1", "monitor 2", "gpu1/gi7/access 201", "gpu1/gi7/ci0/access 202", "gpu1/gi2/access 156"]
    minors.write_text("".join(f"{line}\n" for line in lines))
    return NvmlSource(nvml=nvml_binding, clock=SystemClock(), pci_devices=tmp_path, mig_minors=minors)


def faults(source: NvmlSource) -> Sequence[str]:
    """Each has a code for metrics."""
    found = [gpu.fault for gpu in source.read()]
    assert Code.OTHER not in map(code, [*found, *(each.reason for each in source.left_out)])
    return found


def strikes(source: NvmlSource, nvml_stub: Stub, *xids: int, **how: Any) -> Sequence[str]:
    """The faults after events of the first GPU, of which the last ends a wait."""
    for xid in xids:
        nvml_stub.happen(0, xid, **how)
    source.wait(threading.Event(), 250.0)
    return faults(source)


def test_a_lost_gpu_says_so_and_comes_back_well(source: NvmlSource, nvml_stub: Stub) -> None:
    nvml_stub.add_gpu()
    nvml_stub.add_gpu()
    assert faults(source) == ["", ""]
    nvml_stub.happen(1, 79)
    source.wait(threading.Event(), 250.0)
    assert faults(source) == ["", "Xid 79: GPU has fallen off the bus"]
    nvml_stub.set({"1.fail.all": stub.GPU_IS_LOST})
    assert faults(source) == ["", "the driver says: GPU is lost"]
    nvml_stub.set({"1.fail.all": None})
    assert faults(source) == ["", ""]  # what took it away and brought it back was a reset


def test_a_driver_that_is_loaded_again_starts_the_gpus_from_scratch(source: NvmlSource, nvml_stub: Stub) -> None:
    nvml_stub.add_gpu()
    source.read()
    assert strikes(source, nvml_stub, 0, kind=stub.DOUBLE_BIT_ECC) == ["uncorrectable memory error (ECC)"]
    nvml_stub.set({"fail.all": 9})
    with pytest.raises(GpuSourceError, match="Driver Not Loaded") as caught:
        source.read()
    assert caught.value.reason == "the driver does not answer: Driver Not Loaded"
    assert caught.value.reason.code == Code.DRIVER_SILENT
    nvml_stub.set({"fail.all": None})
    assert faults(source) == [""]


def test_xids_that_are_ignored_and_those_of_programs_change_nothing(nvml_stub: Stub, nvml_binding: Any) -> None:
    source = NvmlSource(nvml=nvml_binding, clock=SystemClock(), ignored_xids=frozenset({63}))
    nvml_stub.add_gpu()
    source.read()
    assert strikes(source, nvml_stub, 63, 13, 31, 43, 45, 68, 109, 62) == ["Xid 62: internal micro-controller halt"]
    assert strikes(source, nvml_stub, 199) == ["Xid 199"]
    source = NvmlSource(nvml=nvml_binding, clock=SystemClock())
    source.read()  # an instance that an old driver names does not hide the fault of a whole GPU
    assert strikes(source, nvml_stub, 62, instance=0) == ["Xid 62: internal micro-controller halt"]


CONTAINED = "Xid 94: contained ECC error"


def test_time_or_the_driver_says_when_a_gpu_is_well_again(nvml_stub: Stub, nvml_binding: Any) -> None:
    clock = ManualClock()
    source = NvmlSource(nvml=nvml_binding, clock=clock, recovery_s=600.0)
    nvml_stub.add_gpu()
    source.read()
    strikes(source, nvml_stub, 94)
    for seconds, fault in ((599, CONTAINED), (1, "")):
        clock.at += seconds
        assert faults(source) == [fault]
    source = NvmlSource(nvml=nvml_binding, clock=clock)
    nvml_stub.set({"0.field.230": 0})
    source.read()
    assert strikes(source, nvml_stub, 94) == [CONTAINED]
    clock.at += 29
    assert faults(source) == [CONTAINED]  # it may not have found out yet what must be done
    nvml_stub.set({"0.field.230": 4})
    clock.at += 60
    [fault] = faults(source)
    assert (code(fault), fault) == ("Xid94", f"{CONTAINED}; the driver asks to end what runs and reset the GPU")
    nvml_stub.set({"0.field.230": 0})
    assert faults(source) == [""]


def test_only_gpus_that_were_never_read_are_left_out_and_named_once(
    source: NvmlSource, nvml_stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    nvml_stub.add_gpu()
    nvml_stub.add_gpu()
    nvml_stub.set({"0.mig": 1, "1.mig": 0})
    assert faults(source) == faults(source) == [""]
    assert len(fields_of(caplog, "gpu left out")) == 1
    assert [(gpu.index, gpu.reason.partition(";")[0]) for gpu in source.left_out] == [
        (0, "in MIG mode without instances")
    ]
    nvml_stub.set({"0.mig": None, "1.fail.all": stub.GPU_IS_LOST})
    assert faults(source) == ["", "the driver says: GPU is lost"]
    assert source.left_out == ()


def test_what_the_driver_asks_for_holds_without_an_event_and_for_all_instances(
    source: NvmlSource, nvml_stub: Stub
) -> None:
    for _ in range(3):
        nvml_stub.add_gpu(40960)
    nvml_stub.set({"0.field.230": 1, "1.field.230": 99, "2.fail.nvmlDeviceGetFieldValues": stub.FUNCTION_NOT_FOUND})
    nvml_stub.add_mig(1, 0, profile="1g.5gb", memory_mib=4864, gi=7)
    assert faults(source) == ["the driver asks to reset the GPU", "the driver asks to do 99", ""]


def test_what_the_driver_asks_for_can_be_ignored(nvml_stub: Stub, nvml_binding: Any) -> None:
    clock = ManualClock()
    source = NvmlSource(nvml=nvml_binding, clock=clock, recovery_action=False)
    nvml_stub.add_gpu()
    nvml_stub.add_gpu()
    nvml_stub.set({"0.field.230": 0, "1.field.230": 2})
    source.read()
    strikes(source, nvml_stub, 94)
    clock.at += 3600
    assert faults(source) == [CONTAINED, ""]


def test_a_gpu_is_read_with_its_numa_node_if_the_machine_has_any(
    source: NvmlSource, nvml_stub: Stub, tmp_path: Path
) -> None:
    nvml_stub.add_gpu(bus="00000000:3B:00.0", minor=4)
    (tmp_path / "0000:3b:00.0").mkdir()
    uuid, memory = str(nvml_stub.keys["0.uuid"]), (15360 - 300) * MIB
    for text, numa in (("1\n", 1), ("0\n", 0), ("-1\n", None), ("", None), ("none", None)):
        (tmp_path / "0000:3b:00.0" / "numa_node").write_text(text)
        assert source.read() == [RawGpu(uuid=uuid, index=0, model="Tesla T4", memory_bytes=memory, numa=numa, minor=4)]


def test_what_claims_select_by_is_what_driver_and_machine_tell(
    source: NvmlSource, nvml_stub: Stub, tmp_path: Path
) -> None:
    nvml_stub.add_gpu()
    (gpu,) = source.read()
    assert gpu.attributes == (("driverVersion", "580.95.5"), ("resource.kubernetes.io/pciBusID", "0000:01:00.0"))
    nvml_stub.set({"cuda": 12080, "0.architecture": 9, "0.capability": "9 0", "0.bus": "00000000:3B:00.0"})
    card = tmp_path / "devices" / "pci0000:3a" / "0000:3a:00.0" / "0000:3b:00.0"
    card.mkdir(parents=True)
    (tmp_path / "0000:3b:00.0").symlink_to(card)
    (gpu,) = source.read()
    assert dict(gpu.attributes) == {
        "architecture": "Hopper",
        "cudaComputeCapability": "9.0.0",
        "driverVersion": "580.95.5",
        "cudaDriverVersion": "12.8.0",
        "resource.kubernetes.io/pciBusID": "0000:3b:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:3a",
    }
    nvml_stub.set({"0.architecture": 99})
    assert dict(source.read()[0].attributes)["architecture"] == "Unknown"


class Calls:
    """The binding; counts the functions that are called."""

    def __init__(self, nvml: Any) -> None:
        self.nvml, self.made = nvml, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.made[name] += 1
        return getattr(self.nvml, name)

    def open(self) -> tuple[int, int]:
        """Libraries and sets of events that were not given back."""
        made = self.made
        sets = made["nvmlEventSetCreate"] - made["nvmlEventSetFree"]
        return made["nvmlInit"] - made["nvmlShutdown"], sets


def counted(nvml_binding: Any, nvml_stub: Stub) -> tuple[NvmlSource, Calls, ManualClock]:
    """Of a machine with one GPU."""
    calls, clock = Calls(nvml_binding), ManualClock()
    nvml_stub.add_gpu()
    return NvmlSource(nvml=calls, clock=clock), calls, clock


def test_a_missing_driver_is_explained_and_asked_again_and_what_was_opened_is_given_back(
    nvml_binding: Any, nvml_stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    source, calls, clock = counted(nvml_binding, nvml_stub)
    source.close()
    source.wait(threading.Event(), 3.0)
    assert (clock.waits, calls.open()) == ([3.0], (0, 0))
    nvml_stub.set({"fail.nvmlInitWithFlags": 9})
    with pytest.raises(GpuSourceError) as caught:
        source.read()
    assert str(caught.value) == (
        "the NVIDIA driver does not answer (Driver Not Loaded); is the driver installed on the node, and is its library"
        " mounted into this container (runtimeClassName nvidia, or the driver's directory as a volume)?"
    )
    nvml_stub.set({"fail.nvmlInitWithFlags": None})
    calls.made.clear()
    assert (faults(source), calls.open()) == ([""], (1, 1))
    nvml_stub.set({"fail.all": 1})
    with pytest.raises(GpuSourceError):
        source.read()
    assert calls.open() == (0, 0)
    nvml_stub.set({"fail.all": None})
    assert (faults(source), calls.open()) == ([""], (1, 1))
    for _ in range(2):
        source.close()
        assert calls.open() == (0, 0)
    assert fields_of(caplog, "nvml not closed") == [{"error": "Uninitialized"}] * 2


def test_a_gpu_without_fault_events_is_shared_all_the_same(
    source: NvmlSource, nvml_stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    nvml_stub.add_gpu()
    nvml_stub.add_gpu()
    nvml_stub.set({"0.fail.nvmlDeviceGetSupportedEventTypes": stub.NOT_SUPPORTED})
    assert faults(source) == faults(source) == ["", ""]
    assert fields_of(caplog, "no fault events") == [{"gpu": nvml_stub.keys["0.uuid"], "error": "Not Supported"}]


def test_a_driver_without_events_is_only_read(
    nvml_binding: Any, nvml_stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    source, calls, clock = counted(nvml_binding, nvml_stub)
    nvml_stub.set({"fail.nvmlEventSetCreate": stub.NOT_SUPPORTED})
    assert faults(source) == [""]
    source.wait(threading.Event(), 3.0)
    source.close()
    assert (clock.waits, calls.open()) == ([3.0], (0, 1))
    assert fields_of(caplog, "no fault events") == [{"error": "Not Supported"}]


def test_waiting_looks_for_the_stop_in_between(
    source: NvmlSource, nvml_binding: Any, nvml_stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml_stub.add_gpu()
    source.clock = clock = ManualClock()
    stop = threading.Event()

    def wait(_events: object, milliseconds: int) -> None:
        clock.wait(stop, milliseconds / 1000)
        raise nvml_binding.NVMLError_Timeout

    monkeypatch.setattr(nvml_binding, "nvmlEventSetWait_v2", wait)
    source.read()
    source.wait(stop, 1.2)
    assert [round(seconds, 1) for seconds in clock.waits] == [0.5, 0.5, 0.2]
    stop.set()
    source.wait(stop, 1.2)
    assert len(clock.waits) == 3


def test_failing_events_lead_to_a_new_start_at_the_next_reading(
    nvml_binding: Any, nvml_stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    source, calls, clock = counted(nvml_binding, nvml_stub)
    nvml_stub.set({"fail.nvmlEventSetWait_v2": stub.GPU_IS_LOST})
    for _ in range(2):
        assert (faults(source), calls.open()) == ([""], (1, 1))
        source.wait(threading.Event(), 3.0)
        assert calls.open() == (0, 0)
    assert clock.waits == [3.0, 3.0]
    assert fields_of(caplog, "fault events failed") == [{"error": "GPU is lost"}]


def test_memory_is_what_cuda_can_give_unless_all_is_wanted(nvml_stub: Stub, nvml_binding: Any) -> None:
    nvml_stub.add_gpu(40960, reserved_mib=583)
    rules: list[tuple[dict[str, Any], int]] = [({}, 40377), ({"reserved": True}, 40960), ({"unified_mib": 100}, 40377)]
    for rule, mib in rules:
        (gpu,) = NvmlSource(nvml=nvml_binding, clock=SystemClock(), **rule).read()
        assert gpu.memory_bytes == mib * MIB, rule
    for error in (stub.FUNCTION_NOT_FOUND, stub.NOT_SUPPORTED):  # an old driver does not say what it keeps
        nvml_stub.set({"0.fail.nvmlDeviceGetMemoryInfo_v2": error})
        assert [gpu.memory_bytes for gpu in NvmlSource(nvml=nvml_binding, clock=SystemClock()).read()] == [40960 * MIB]


def test_a_driver_without_the_newer_functions_is_enough(source: NvmlSource, nvml_stub: Stub) -> None:
    names = ("GetMemoryInfo_v2", "GetMigMode", "GetFieldValues", "GetMinorNumber", "GetPciInfo_v3")
    nvml_stub.set({f"fail.nvmlDevice{name}": stub.FUNCTION_NOT_FOUND for name in names})
    nvml_stub.add_gpu(15360)
    (gpu,) = source.read()
    assert (gpu.memory_bytes, gpu.minor, gpu.fault) == (15360 * MIB, None, "")


@pytest.mark.parametrize("memory", [None, "0 0 0"])
def test_a_gpu_without_memory_of_its_own_is_named_or_has_the_size_that_is_set(
    nvml_stub: Stub, nvml_binding: Any, caplog: pytest.LogCaptureFixture, memory: str | None
) -> None:
    nvml_stub.add_gpu(model="NVIDIA GB10", memory=memory)
    source = NvmlSource(nvml=nvml_binding, clock=SystemClock())
    assert source.read() == []
    (left,) = source.left_out
    assert code(left.reason) == Code.MEMORY_UNKNOWN
    assert left.reason == (
        "the driver does not say how much memory it has, as with memory that it shares with the processor; set"
        " --unified-memory to the size that may be shared"
    )
    assert fields_of(caplog, "gpu left out") == [{"index": 0, "reason": left.reason}]
    (gpu,) = NvmlSource(nvml=nvml_binding, clock=SystemClock(), unified_mib=98304).read()
    assert gpu.memory_bytes == 98304 * MIB


def test_mig_instances_stand_beside_whole_gpus(source: NvmlSource, nvml_stub: Stub) -> None:
    nvml_stub.add_gpu(40960, model="NVIDIA A100-SXM4-40GB")
    nvml_stub.add_gpu(40960, model="NVIDIA A100-SXM4-40GB")
    small = nvml_stub.add_mig(1, 0, profile="1g.5gb", memory_mib=4864, reserved_mib=13, gi=7)
    large = nvml_stub.add_mig(1, 3, profile="3g.20gb", memory_mib=19968, gi=2)
    whole, *parts = source.read()
    assert (whole.index, whole.mig) == (0, None)
    assert parts == [
        RawGpu(
            uuid=uuid,
            index=index,
            model=f"NVIDIA A100-SXM4-40GB MIG {profile}",
            memory_bytes=mib * MIB,
            mig=MigInstance(gpu=1, number=number, profile=profile),
            minor=1,
            caps=caps,
        )
        for uuid, index, profile, mib, number, caps in [
            (small, 80, "1g.5gb", 4851, 0, (201, 202)),
            (large, 83, "3g.20gb", 19968, 3, ()),  # not in the driver's list as a whole
        ]
    ]


def test_a_fault_of_a_gpu_is_one_of_its_instances_and_one_of_an_instance_is_its_own(
    source: NvmlSource, nvml_stub: Stub
) -> None:
    nvml_stub.add_gpu(40960)
    nvml_stub.add_mig(0, 0, profile="1g.5gb", memory_mib=4864, gi=7)
    nvml_stub.add_mig(0, 1, profile="1g.5gb", memory_mib=4864, gi=8)
    source.read()
    assert strikes(source, nvml_stub, 94, instance=8) == ["", CONTAINED]
    assert strikes(source, nvml_stub, 95) == ["Xid 95: uncontained ECC error"] * 2
    nvml_stub.set({"0.fail.all": stub.GPU_IS_LOST})
    assert faults(source) == ["the driver says: GPU is lost"] * 2


def test_instances_that_are_made_and_removed_while_the_plugin_runs(source: NvmlSource, nvml_stub: Stub) -> None:
    nvml_stub.add_gpu(40960)
    assert faults(source) == [""]
    nvml_stub.set({"0.mig": 1})
    assert [(gpu.index, gpu.fault.partition(";")[0]) for gpu in source.read()] == [(0, "in MIG mode without instances")]
    first = nvml_stub.add_mig(0, 0, profile="1g.5gb", memory_mib=4864, gi=7)
    nvml_stub.add_mig(0, 1, profile="1g.5gb", memory_mib=4864, gi=8)
    assert [(gpu.index, gpu.fault) for gpu in source.read()] == [(64, ""), (65, ""), (0, "the GPU is in MIG mode")]
    nvml_stub.set({"0.mig.1.uuid": None})
    assert [(gpu.index, gpu.fault) for gpu in source.read()][:2] == [
        (64, ""),
        (65, "the MIG instance no longer exists"),
    ]
    nvml_stub.set({"0.mig.0.uuid": None, "0.mig.1.uuid": "MIG-other"})
    assert {gpu.uuid: gpu.fault for gpu in source.read()} == {
        "MIG-other": "",
        first: "the MIG instance no longer exists",
        nvml_stub.keys["0.uuid"]: "the GPU is in MIG mode",
    }
    assert {code(fault) for fault in faults(source)} == {"", Code.MIG_GONE, Code.MIG_MODE}


def test_a_gpu_that_is_gone_when_the_library_is_opened_again_does_not_confuse_the_numbers(
    source: NvmlSource, nvml_stub: Stub
) -> None:
    nvml_stub.add_gpu()
    nvml_stub.add_gpu()
    first, second = (gpu.uuid for gpu in source.read())
    nvml_stub.set({"0.uuid": second, "1.fail.all": stub.GPU_IS_LOST})
    assert [(gpu.uuid, gpu.index, gpu.fault) for gpu in source.read()] == [(second, 0, "")]
    nvml_stub.set({"0.uuid": first, "1.fail.all": None})
    assert [(gpu.uuid, gpu.index) for gpu in source.read()] == [(first, 0), (second, 1)]


def test_versions_that_differ_need_a_new_process(
    source: NvmlSource, nvml_stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.read()
    nvml_stub.set({"driver": "590.10"})
    with pytest.raises(OutdatedLibraryError) as caught:
        source.read()
    assert caught.value.reason == "driver and library have different versions"
    assert caught.value.reason.code == Code.DRIVER_CHANGED
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_stub.directory))
    assert not driver.works_in_new_process()
    nvml_stub.set({"library": "590.10"})
    assert driver.works_in_new_process()
    with pytest.raises(OutdatedLibraryError):
        source.read()


@pytest.mark.parametrize("function", ["nvmlDeviceGetCount_v2", "nvmlEventSetWait_v2", "all"])
def test_a_driver_that_hangs_is_one_that_does_not_answer(
    nvml_stub: Stub, nvml_binding: Any, source: NvmlSource, function: str
) -> None:
    nvml_stub.add_gpu()
    assert faults(source) == [""]
    answering, source.within = source.within, Deadline(0.05)
    source.clock = clock = ManualClock()
    nvml_stub.set({f"hang.{function}": 1})
    if function == "nvmlEventSetWait_v2":
        source.wait(threading.Event(), 5.0)
        assert clock.waits == [5.0]  # and not again and again
    for _ in range(2):
        with pytest.raises(GpuSourceError, match=r"driver has not answered in 0\.05 s") as caught:
            source.read()
        assert caught.value.reason == "the driver does not answer"
        assert caught.value.reason.code == Code.DRIVER_SILENT
        assert getattr(caught.value.__cause__, "cause", NONE).code == Code.DRIVER_SILENT
    source.wait(threading.Event(), 5.0)
    source.close()  # comes back
    [thread] = [each for each in threading.enumerate() if each.name == "driver"]
    nvml_stub.set({f"hang.{function}": None})
    thread.join()
    source.within = answering
    assert faults(source) == [""]
