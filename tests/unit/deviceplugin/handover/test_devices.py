"""What Allocate answers, what is there when a container starts, and what is removed."""

import base64
import json
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from deviceplugin.api import deviceplugin_pb2 as api
from deviceplugin.cdi import ContainerEdits, Mount
from deviceplugin.handover import choice
from deviceplugin.handover.devices import DeviceHandOver, HandOverError, Recipient, SpecSweeper
from deviceplugin.handover.spec_files import SpecFile, SpecFiles
from deviceplugin.resources import MEMORY
from gpushare.errors import WireError
from gpushare.identity import ContainerName, GpuUuid, PodUid
from gpushare.model.gpu import HandOver
from gpushare.wire.pods import Pod
from testing.builders import make_grant
from testing.clock import ManualClock, ending
from testing.deviceplugin import nvidia
from testing.deviceplugin.build import bound_pod, fields_of, handing_over

IDS = frozenset({"g000", "g001"})
NONCE = "0123456789abcdef"
NAME = choice.stem(IDS) + NONCE
OTHER = choice.stem(IDS) + "fedcba9876543210"


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


def answered(**fields: Any) -> Any:
    """Always with a variable that shows no GPU to a container that was not mutated."""
    return api.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "void"}, **fields)


def test_allocate_names_a_device_that_no_earlier_answer_has_named(by_cdi: DeviceHandOver, tmp_path: Path) -> None:
    first, second = by_cdi.answer(MEMORY, sorted(IDS)), by_cdi.answer(MEMORY, sorted(IDS))
    [named], [other] = first.cdi_devices, second.cdi_devices
    assert named.name.startswith(f"gpushare.dev/share={choice.stem(IDS)}")
    assert named != other
    assert first == answered(cdi_devices=[named])
    assert files(tmp_path) == []


def test_other_ways_of_answering() -> None:
    old = handing_over(HandOver.CDI, by_field=False, by_annotation=True).answer(MEMORY, sorted(IDS))
    assert old == answered(annotations={"cdi.k8s.io/gpushare-g": old.annotations["cdi.k8s.io/gpushare-g"]})
    assert handing_over(HandOver.ENVVAR).answer(MEMORY, sorted(IDS)) == answered()
    by_mounts = handing_over(HandOver.VOLUME_MOUNTS).answer(MEMORY, sorted(IDS))
    path = by_mounts.mounts[0].container_path
    assert path.startswith("/var/run/nvidia-container-devices/cdi/gpushare.dev/share/c")
    mount = api.Mount(container_path=path, host_path="/dev/null", read_only=True)
    assert by_mounts == answered(mounts=[mount])


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


@pytest.mark.parametrize("way", HandOver)
def test_several_gpus_and_what_limits_their_use_also_once_the_node_has_gone_over_to_variables(
    way: HandOver, tmp_path: Path
) -> None:
    limits = ContainerEdits(env=(("LIMIT", "1"),), mounts=(Mount(host_path="/lib", container_path="/lib"),))
    handing_over(way, tmp_path).prepare(IDS, [recipient("GPU-1", "GPU-0", extra=limits)])
    edits = devices(tmp_path)[NAME]
    assert [mount["hostPath"] for mount in edits["mounts"]] == ["/lib"]
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidia1", "/dev/nvidia0"]
    assert edits["env"] == ["LIMIT=1", "NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-0", "GPUSHARE_VISIBLE_DEVICES=GPU-1,GPU-0"]


def test_a_later_holder_of_the_ids_takes_the_place_of_the_former_one(by_cdi: DeviceHandOver, tmp_path: Path) -> None:
    by_cdi.prepare(IDS, [recipient("GPU-0")])
    by_cdi.prepare(frozenset({"g002"}), [recipient("GPU-0", name=choice.stem(["g002"]) + "1" * 16)])
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


def test_what_cannot_be_put_in_place_is_not_left_half_written_and_what_cannot_be_removed_is_logged(
    by_cdi: DeviceHandOver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / SpecFile("uid-p", NAME).name).mkdir()
    with pytest.raises(HandOverError, match=r"cannot be removed \(Is a directory\)"):
        by_cdi.prepare(IDS, [recipient()])
    assert files(tmp_path) == [SpecFile("uid-p", NAME).name]
    by_cdi.prepare(frozenset({"p000"}), [recipient(name=choice.stem(["p000"]) + "1" * 16)])
    by_cdi.withdraw(IDS, PodUid("uid-p"))
    assert files(tmp_path) == [SpecFile("uid-p", NAME).name]
    (logged,) = fields_of(caplog, "spec not removed")
    assert logged["error"].startswith(f"the CDI spec of device {NAME} in {tmp_path} cannot be removed (")


def test_a_link_in_the_place_of_a_spec_is_replaced_and_not_followed(by_cdi: DeviceHandOver, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / SpecFile("uid-p", NAME).name).symlink_to(target)
    by_cdi.prepare(IDS, [recipient()])
    assert target.read_text() == "kept"
    assert list(devices(tmp_path)) == [NAME]


def test_no_runtime_of_nvidias_looks_for_simulated_gpus(tmp_path: Path) -> None:
    for runtime_class, nvidia_default in (("nvidia", False), ("nvidia-cdi", False), ("", True), ("kata", True)):
        made = handing_over(HandOver.CDI, tmp_path, nvidia_default=nvidia_default)
        made.prepare(IDS, [recipient("GPU-0", runtime_class=runtime_class)])
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


def test_where_nvidias_runtime_reads_the_variable_too_it_is_told_of_nothing(tmp_path: Path) -> None:
    uuid = nvidia.UUIDS[0]
    by_nvidia = (("nvidia", False, "void"), ("nvidia-cdi", False, "void"), ("", True, "void"))
    for runtime_class, nvidia_default, told in (*by_nvidia, ("", False, uuid)):
        made = real(tmp_path, nvidia.BY_UUID, nvidia_default=nvidia_default)
        made.prepare(IDS, [recipient(uuid, runtime_class=runtime_class)])
        assert own(tmp_path)["env"][1:] == [f"NVIDIA_VISIBLE_DEVICES={told}", f"GPUSHARE_VISIBLE_DEVICES={uuid}"]


def test_without_a_spec_of_nvidias_there_is_no_driver_to_hand_over(tmp_path: Path) -> None:
    missing = (
        f"^no CDI spec of NVIDIA's on this node has GPU {nvidia.UUIDS[0]}; write one there with nvidia-ctk cdi gen"
    )
    with pytest.raises(HandOverError, match=missing):
        real(tmp_path).prepare(IDS, [recipient(nvidia.UUIDS[0])])


def forged(*names: str) -> Any:
    """Someone else's spec of this plugin's kind, which gives all GPUs."""
    devices = [nvidia.device(name, *map(nvidia.node, range(4))) for name in names]
    return nvidia.document(*devices, kind="gpushare.dev/share")


@pytest.mark.parametrize("name", [NAME, "other"])
def test_a_spec_that_someone_else_wrote_under_our_kind_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    real(tmp_path, forged(name), nvidia.BY_INDEX).prepare(IDS, [recipient(nvidia.UUIDS[0])])
    assert files(tmp_path) == [SpecFile("uid-p", NAME).name, "nvidia-1.json"]
    assert fields_of(caplog, "forged spec removed")[0]["path"] == str(tmp_path / "nvidia-0.json")


def test_a_link_to_such_a_spec_is_removed_and_its_target_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    target = tmp_path / "target"
    target.write_text(json.dumps(forged(NAME)))
    target.chmod(0o644)
    (tmp_path / "cdi" / "a.json").symlink_to(target)
    handing_over(HandOver.CDI, tmp_path / "cdi").prepare(IDS, [recipient("GPU-0")])
    assert files(tmp_path / "cdi") == [SpecFile("uid-p", NAME).name]
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


def test_without_cdi_the_directories_are_not_read(tmp_path: Path) -> None:
    made = handing_over(HandOver.ENVVAR, tmp_path)
    made.specs = lambda: pytest.fail("read")
    made.prepare(IDS, [Recipient(uid="u", container=ContainerName("main"), names=(), gpus=(GpuUuid("GPU-0"),))])


OLD = SpecFile("uid-p", NAME).name


def holder(phase: str = "Running") -> Pod:
    return bound_pod(make_grant(0), name="p", phase=phase)


class Swept:
    def __init__(self, directory: Path) -> None:
        self.pods: Sequence[Pod] | None = [holder()]
        self.clock = ManualClock()
        self.directory = directory
        self.sweeper = SpecSweeper(
            devices=handing_over(HandOver.CDI, directory), pods=lambda: self.pods, clock=self.clock
        )

    def write(self, age_s: float) -> None:
        self.sweeper.devices.prepare(IDS, [recipient("GPU-0")])
        self.age(OLD, age_s)

    def age(self, name: str, age_s: float) -> None:
        at = self.clock.now().timestamp() - age_s
        os.utime(self.directory / name, (at, at))

    def left(self) -> list[str]:
        self.sweeper.sweep()
        return files(self.directory)


@pytest.fixture
def swept(tmp_path: Path) -> Swept:
    return Swept(tmp_path)


def test_what_a_pod_of_the_node_needs_stays_and_the_rest_goes(tmp_path: Path) -> None:
    for age_s, pods, stays in (
        (1000.0, [holder()], True),
        (61.0, [holder("Succeeded")], False),
        (61.0, [holder("Failed")], False),
        (59.0, [], True),  # the watch may not have told of it yet
        (61.0, [], False),
        (1000.0, None, True),  # they are not known
    ):
        swept = Swept(tmp_path)
        swept.write(age_s)
        swept.pods = pods
        assert swept.left() == [OLD] * stays, (age_s, pods)


def test_what_a_pod_had_that_was_known_before_goes_at_once(swept: Swept) -> None:
    swept.write(0.0)
    swept.pods = [holder()]
    assert swept.left() == [OLD]
    swept.pods = []
    assert swept.left() == []


def test_what_was_never_finished_goes(swept: Swept, tmp_path: Path) -> None:
    for name in (".gpushare-1.tmp", ".gpushare-2.tmp", ".other.tmp"):
        (tmp_path / name).touch()
        swept.age(name, 1000.0)
    swept.age(".gpushare-2.tmp", 10.0)
    assert swept.left() == [".gpushare-2.tmp", ".other.tmp"]


def test_what_others_wrote_of_our_kind_goes(swept: Swept, tmp_path: Path) -> None:
    swept.write(1000.0)
    (tmp_path / "copy.json").write_text(json.dumps(forged("x")))
    (tmp_path / "copy.json").chmod(0o644)
    assert swept.left() == [OLD]
    assert list(devices(tmp_path)) == [NAME]


def test_it_looks_now_and_then(swept: Swept) -> None:
    swept.write(61.0)
    swept.pods, stop = [], Event()
    swept.sweeper.clock = clock = ending(stop, 1)
    swept.sweeper.run(stop)
    assert (files(swept.directory), clock.waits) == ([], [10.0])


def test_what_cannot_be_removed_is_tried_again(swept: Swept, tmp_path: Path) -> None:
    (tmp_path / OLD).mkdir()
    swept.age(OLD, 1000.0)
    swept.pods = []
    assert swept.left() == [OLD]
    (tmp_path / OLD).rmdir()
    assert swept.left() == []


def response(**fields: object) -> str:
    return base64.b64encode(api.ContainerAllocateResponse(**fields).SerializeToString()).decode()


def test_a_name_begins_with_the_ids_whatever_their_order() -> None:
    assert choice.stem(["g000", "g001"]) + NONCE == NAME
    assert choice.stem(["g000"]) != choice.stem(["g000", "g001"])
    assert len(NAME) == 34


def test_a_file_says_whose_device_it_has_and_a_uid_that_would_lead_elsewhere_is_refused() -> None:
    file = SpecFile("uid-1", NAME).name
    assert (file, SpecFile.of(file)) == (f"gpushare.dev-share_uid-1_{NAME}.json", SpecFile("uid-1", NAME))
    for uid in ("", "../x", "a/b", "a_b", "x" * 65, "a\0"):
        with pytest.raises(ValueError, match="is not the UID of a pod"):
            _ = SpecFile(uid, NAME).name
    for other in ("nvidia.yaml", f"gpushare.dev-share_{NAME}.json", f"gpushare.dev-share_u_{NAME}.yaml"):
        assert SpecFile.of(other) is None


def test_names_are_found_in_what_allocate_has_said_and_nothing_else_is_a_name() -> None:
    own, key = f"gpushare.dev/share={NAME}", "cdi.k8s.io/gpushare-g"
    path = f"/var/run/nvidia-container-devices/cdi/gpushare.dev/share/{NAME}"
    said: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"cdi_devices": [api.CDIDevice(name=own)]}, (NAME,)),
        ({"annotations": {key: f"other.dev/x=1,{own}"}}, (NAME,)),
        ({"cdi_devices": [api.CDIDevice(name=own)], "annotations": {key: own}}, (NAME,)),
        ({"mounts": [api.Mount(host_path="/dev/null", container_path=path)]}, (NAME,)),
        ({"envs": {"NVIDIA_VISIBLE_DEVICES": "void"}}, ()),
        ({"cdi_devices": [api.CDIDevice(name="gpushare.dev/share=../../etc/passwd")]}, ()),
        ({"cdi_devices": [api.CDIDevice(name=f"nvidia.com/gpu={NAME}")]}, ()),
        ({"cdi_devices": [api.CDIDevice(name=NAME)]}, ()),
        ({}, ()),
    ]
    for fields, names in said:
        assert choice.in_response(response(**fields)) == (names, bool(names) and "mounts" not in fields), fields
    for text in ("!", "AAA", base64.b64encode(b"\xff\xff").decode()):
        with pytest.raises(WireError, match=r"^AllocResp is not an answer of Allocate"):
            choice.in_response(text)


def test_of_too_many_files_some_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deviceplugin.handover.spec_files.MAX_FILES", 2)
    for number in range(5):
        (tmp_path / SpecFile(f"uid-{number}", NAME).name).touch()
    assert len(list(SpecFiles(tmp_path).found())) == 2
