"""What lies in the directory of CDI specs after each call of the kubelet."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.cdi import ContainerEdits, Mount
from deviceplugin.handover import strategy
from deviceplugin.handover.devices import DeviceHandOver
from deviceplugin.handover.pick import HandOverError, Recipient
from deviceplugin.handover.strategy import AllocateResponse
from deviceplugin.resources import MEMORY
from gpushare.identity import ContainerName, GpuUuid, PodUid
from gpushare.model.gpu import HandOver
from testing.deviceplugin import nvidia
from testing.deviceplugin.build import fields_of, handing_over

IDS = frozenset({"g000", "g001"})
NAME = strategy.make(IDS, "0123456789abcdef")
OTHER = strategy.make(IDS, "fedcba9876543210")


@pytest.fixture
def by_cdi(tmp_path: Path) -> DeviceHandOver:
    return handing_over(HandOver.CDI, tmp_path)


def recipient(*gpus: str, name: str = NAME, uid: str = "uid-p", **fields: Any) -> Recipient:
    uuids = tuple(map(GpuUuid, gpus or ("GPU-1",)))
    return Recipient(uid=uid, container=ContainerName("main"), names=(name,), gpus=uuids, **fields)


def devices(directory: Path) -> dict[str, Any]:
    """What a container runtime would inject, by name; files of other names are not read by one."""
    found = [json.loads(file.read_text()) for file in directory.iterdir() if file.suffix in {".json", ".yaml"}]
    assert all((spec["cdiVersion"], spec["kind"]) == ("0.5.0", "gpushare.dev/share") for spec in found)
    return {device["name"]: device["containerEdits"] for spec in found for device in spec["devices"]}


def files(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def test_allocate_names_a_device_that_no_earlier_answer_has_named(by_cdi: DeviceHandOver, tmp_path: Path) -> None:
    first, second = by_cdi.answer(MEMORY, sorted(IDS)), by_cdi.answer(MEMORY, sorted(IDS))
    assert first.cdi_devices[0].startswith(f"gpushare.dev/share={strategy.stem(IDS)}")
    assert first.cdi_devices != second.cdi_devices
    assert first.env == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert (first.annotations, first.mounts) == ((), ())
    assert files(tmp_path) == []


def test_other_ways_of_answering() -> None:
    old = handing_over(HandOver.CDI, by_field=False, by_annotation=True).answer(MEMORY, sorted(IDS))
    assert (old.cdi_devices, [key for key, _ in old.annotations]) == ((), ["cdi.k8s.io/gpushare-g"])
    assert handing_over(HandOver.ENVVAR).answer(MEMORY, sorted(IDS)) == AllocateResponse()
    by_mounts = handing_over(HandOver.VOLUME_MOUNTS).answer(MEMORY, sorted(IDS))
    ((path, source),) = by_mounts.mounts
    assert source == "/dev/null"
    assert path.startswith("/var/run/nvidia-container-devices/cdi/gpushare.dev/share/c")
    assert (by_mounts.cdi_devices, by_mounts.annotations) == ((), ())


def test_a_device_has_exactly_the_granted_gpus(by_cdi: DeviceHandOver, tmp_path: Path) -> None:
    by_cdi.prepare(IDS, [recipient("GPU-1")])
    assert devices(tmp_path) == {
        NAME: {
            "env": ["NVIDIA_VISIBLE_DEVICES=GPU-1", "GPUSHARE_VISIBLE_DEVICES=GPU-1"],
            "deviceNodes": [{"path": "/dev/nvidia1", "type": "c", "major": 60, "minor": 1}],
        }
    }
    (file,) = tmp_path.iterdir()
    assert file.name == f"gpushare.dev-share_uid-p_{NAME}.json"
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("way", [HandOver.CDI, HandOver.VOLUME_MOUNTS])
def test_several_gpus_and_what_limits_their_use(way: HandOver, tmp_path: Path) -> None:
    limits = ContainerEdits(env=(("LIMIT", "1"),), mounts=(Mount(host_path="/lib", container_path="/lib"),))
    handing_over(way, tmp_path).prepare(IDS, [recipient("GPU-1", "GPU-0", extra=limits)])
    edits = devices(tmp_path)[NAME]
    assert [mount["hostPath"] for mount in edits["mounts"]] == ["/lib"]
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidia1", "/dev/nvidia0"]
    assert edits["env"] == ["LIMIT=1", "NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-0", "GPUSHARE_VISIBLE_DEVICES=GPU-1,GPU-0"]


def test_a_later_holder_of_the_ids_takes_the_place_of_the_former_one(by_cdi: DeviceHandOver, tmp_path: Path) -> None:
    by_cdi.prepare(IDS, [recipient("GPU-0")])
    by_cdi.prepare(frozenset({"g002"}), [recipient("GPU-0", name=strategy.make(["g002"], "1" * 16))])
    by_cdi.prepare(IDS, [recipient("GPU-1", name=OTHER, uid="uid-q")])
    assert NAME not in devices(tmp_path)
    assert [node["minor"] for node in devices(tmp_path)[OTHER]["deviceNodes"]] == [1]
    assert len(files(tmp_path)) == 2


def test_a_gpu_that_is_not_known_is_not_handed_over(by_cdi: DeviceHandOver, tmp_path: Path) -> None:
    with pytest.raises(
        HandOverError, match=r"^GPU GPU-9 was not found at the last reading; the kubelet will try again"
    ):
        by_cdi.prepare(IDS, [recipient("GPU-9")])
    assert files(tmp_path) == []


def test_a_disk_that_is_full_leaves_nothing_not_even_what_was_there(by_cdi: DeviceHandOver, tmp_path: Path) -> None:
    by_cdi.prepare(IDS, [recipient("GPU-0")])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        for _ in range(2):
            with pytest.raises(HandOverError, match=r"cannot be written to .* \(File too large\)"):
                by_cdi.prepare(IDS, [recipient("GPU-1")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(tmp_path) == []


def test_what_cannot_be_put_in_place_is_not_left_half_written(by_cdi: DeviceHandOver, tmp_path: Path) -> None:
    (tmp_path / strategy.file_name("uid-p", NAME)).mkdir()
    with pytest.raises(HandOverError, match=r"cannot be removed \(Is a directory\)"):
        by_cdi.prepare(IDS, [recipient()])
    assert files(tmp_path) == [strategy.file_name("uid-p", NAME)]


def test_what_cannot_be_removed_is_logged(
    by_cdi: DeviceHandOver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / strategy.file_name("uid-p", NAME)).mkdir()
    by_cdi.prepare(frozenset({"p000"}), [recipient(name=strategy.make(["p000"], "1" * 16))])
    by_cdi.withdraw(IDS, PodUid("uid-p"))
    assert files(tmp_path) == [strategy.file_name("uid-p", NAME)]
    (logged,) = fields_of(caplog, "spec not removed")
    assert logged["error"].startswith(f"the CDI spec of device {NAME} in {tmp_path} cannot be removed (")


def test_a_link_in_the_place_of_a_spec_is_replaced_and_not_followed(by_cdi: DeviceHandOver, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / strategy.file_name("uid-p", NAME)).symlink_to(target)
    by_cdi.prepare(IDS, [recipient()])
    assert target.read_text() == "kept"
    assert list(devices(tmp_path)) == [NAME]


@pytest.mark.parametrize(
    ("runtime_class", "nvidia_default"), [("nvidia", False), ("nvidia-cdi", False), ("", True), ("kata", True)]
)
def test_no_runtime_of_nvidias_looks_for_simulated_gpus(
    runtime_class: str, nvidia_default: bool, tmp_path: Path
) -> None:
    handing_over(HandOver.CDI, tmp_path, nvidia_default=nvidia_default).prepare(
        IDS, [recipient("GPU-0", runtime_class=runtime_class)]
    )
    assert "NVIDIA_VISIBLE_DEVICES=GPU-0" in devices(tmp_path)[NAME]["env"]


def real(directory: Path, *specs: Any, **of_choice: Any) -> DeviceHandOver:
    """For four real GPUs, on a node with these specs of NVIDIA's."""
    for i, spec in enumerate(specs):
        file = directory / f"nvidia-{i}.json"
        file.write_text(json.dumps(spec))
        file.chmod(0o644)
    made = handing_over(HandOver.CDI, directory, **of_choice)
    made.gpus = lambda: {GpuUuid(gpu.uuid): gpu for gpu in map(nvidia.gpu, range(4))}
    return made


def own(directory: Path) -> Any:
    (file,) = directory.glob("gpushare.dev-share_*")
    (device,) = json.loads(file.read_text())["devices"]
    return device["containerEdits"]


def test_a_real_gpu_comes_with_what_nvidias_spec_has_for_it(tmp_path: Path) -> None:
    real(tmp_path, nvidia.BY_UUID).prepare(IDS, [recipient(nvidia.UUIDS[2], nvidia.UUIDS[3])])
    edits = own(tmp_path)
    of_gpus = ["/dev/nvidia2", "/dev/dri/renderD130", "/dev/nvidia3", "/dev/dri/renderD131"]
    assert [node["path"] for node in edits["deviceNodes"]] == [*nvidia.CONTROL, *of_gpus]
    common, both = nvidia.BY_UUID["containerEdits"], f"{nvidia.UUIDS[2]},{nvidia.UUIDS[3]}"
    assert (edits["mounts"], edits["hooks"]) == (common["mounts"], common["hooks"])
    told = [f"NVIDIA_VISIBLE_DEVICES={both}", f"GPUSHARE_VISIBLE_DEVICES={both}"]
    assert edits["env"] == ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu", *told]


@pytest.mark.parametrize(
    ("runtime_class", "nvidia_default", "told"),
    [("nvidia", False, "void"), ("nvidia-cdi", False, "void"), ("", True, "void"), ("", False, nvidia.UUIDS[0])],
)
def test_where_nvidias_runtime_reads_the_variable_too_it_is_told_of_nothing(
    runtime_class: str, nvidia_default: bool, told: str, tmp_path: Path
) -> None:
    made, uuid = real(tmp_path, nvidia.BY_UUID, nvidia_default=nvidia_default), nvidia.UUIDS[0]
    made.prepare(IDS, [recipient(uuid, runtime_class=runtime_class)])
    assert own(tmp_path)["env"][1:] == [f"NVIDIA_VISIBLE_DEVICES={told}", f"GPUSHARE_VISIBLE_DEVICES={uuid}"]


def test_without_a_spec_of_nvidias_there_is_no_driver_to_hand_over(tmp_path: Path) -> None:
    with pytest.raises(HandOverError) as caught:
        real(tmp_path).prepare(IDS, [recipient(nvidia.UUIDS[0])])
    assert str(caught.value) == (
        f"no CDI spec of NVIDIA's on this node has GPU {nvidia.UUIDS[0]}; write one there with nvidia-ctk cdi generate"
        " --output=/var/run/cdi/nvidia.yaml, or let the GPU Operator write it"
    )


def forged(*names: str) -> Any:
    """Someone else's spec of this plugin's kind, which gives all GPUs."""
    devices = [nvidia.device(name, *map(nvidia.node, range(4))) for name in names]
    return nvidia.document(*devices, kind="gpushare.dev/share")


@pytest.mark.parametrize("name", [NAME, "other"])
def test_a_spec_that_someone_else_wrote_under_our_kind_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    real(tmp_path, forged(name), nvidia.BY_INDEX).prepare(IDS, [recipient(nvidia.UUIDS[0])])
    assert files(tmp_path) == [strategy.file_name("uid-p", NAME), "nvidia-1.json"]
    assert fields_of(caplog, "forged spec removed")[0]["path"] == str(tmp_path / "nvidia-0.json")


def test_a_link_to_such_a_spec_is_removed_and_its_target_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    target = tmp_path / "target"
    target.write_text(json.dumps(forged(NAME)))
    target.chmod(0o644)
    (tmp_path / "cdi" / "a.json").symlink_to(target)
    handing_over(HandOver.CDI, tmp_path / "cdi").prepare(IDS, [recipient("GPU-0")])
    assert files(tmp_path / "cdi") == [strategy.file_name("uid-p", NAME)]
    assert target.exists()


@pytest.mark.parametrize(("name", "refused"), [(NAME, True), ("other", False)])
def test_where_it_cannot_be_removed_no_container_starts_that_it_would_be_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, refused: bool
) -> None:
    made, spec = handing_over(HandOver.CDI, tmp_path), nvidia.spec(forged(name), "/proc/version/a.json")
    made.specs = lambda: [spec]  # such as one in a read-only /etc/cdi
    if refused:
        with pytest.raises(HandOverError, match=r"^/proc/version/a.json makes the same CDI device; remove that file$"):
            made.prepare(IDS, [recipient("GPU-0")])
        assert files(tmp_path) == []
    else:
        made.prepare(IDS, [recipient("GPU-0")])
    made.remove_forged()
    assert len(fields_of(caplog, "forged spec not removed")) == 1


def test_what_someone_else_made_of_a_refused_containers_device_goes_too(by_cdi: DeviceHandOver, tmp_path: Path) -> None:
    by_cdi.prepare(IDS, [recipient("GPU-0")])
    (tmp_path / "copy.json").write_text(json.dumps(forged(NAME)))
    (tmp_path / "copy.json").chmod(0o644)
    by_cdi.withdraw(IDS)
    assert files(tmp_path) == []


def test_without_cdi_the_directories_are_not_read(tmp_path: Path) -> None:
    made = handing_over(HandOver.ENVVAR, tmp_path)
    made.specs = lambda: pytest.fail("read")
    made.prepare(IDS, [Recipient(uid="u", container=ContainerName("main"), names=(), gpus=(GpuUuid("GPU-0"),))])
