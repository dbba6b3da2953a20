"""Every shape of a cgroup's path leads to its pod and container, and back."""

import os.path
from pathlib import Path
from typing import Final

import pytest

from deviceplugin import cgroups
from deviceplugin.cgroups import CgroupOwner
from gpushare.identity import PodUid

UID: Final = PodUid("0123abcd-0000-1111-2222-333344445555")
UNDERSCORED: Final = UID.replace("-", "_")
HASH: Final = PodUid("f" * 32)
OTHER: Final = PodUid("99999999-0000-1111-2222-333344445555")
ID: Final = "ab" * 32
OTHER_ID: Final = "cd" * 32

POD_DIRECTORIES: Final = {
    "systemd, guaranteed": f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice",
    "systemd, burstable": f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice",
    "systemd, best effort": f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice",
    "cgroupfs, guaranteed": f"/kubepods/pod{UID}",
    "cgroupfs, burstable": f"/kubepods/burstable/pod{UID}",
    "cgroupfs, best effort": f"/kubepods/besteffort/pod{UID}",
    "kind, systemd": "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
    f"/kubelet-kubepods-burstable-pod{UNDERSCORED}.slice",
    "kind, cgroupfs": f"/kubelet/kubepods/burstable/pod{UID}",
    "kind from outside": f"/docker/{OTHER_ID}/kubelet/kubepods/besteffort/pod{UID}",
    "a cgroup root of the administrator": f"/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod{UNDERSCORED}.slice",
}
CONTAINERS: Final = {
    "containerd, systemd": f"cri-containerd-{ID}.scope",
    "containerd or Docker, cgroupfs": ID,
    "CRI-O, systemd": f"crio-{ID}.scope",
    "CRI-O, cgroupfs": f"crio-{ID}",
    "Docker, systemd": f"docker-{ID}.scope",
    "crun's own level": f"crio-{ID}.scope/container",
    "systemd in the container": f"cri-containerd-{ID}.scope/system.slice/dbus.service",
    "Docker in the container": f"{ID}/docker/{OTHER_ID}",
    "a tenant that plays another pod": f"{ID}/kubepods/burstable/pod{OTHER}/{OTHER_ID}",
}


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS.keys())
@pytest.mark.parametrize("pod", POD_DIRECTORIES.values(), ids=POD_DIRECTORIES.keys())
def test_a_process_belongs_to_its_container(pod: str, container: str) -> None:
    owner = CgroupOwner(UID, ID)
    assert cgroups.owner(f"0::{pod}/{container}\n") == owner
    assert cgroups.owner(f"0::/../..{pod}/{container}\n") == owner
    assert cgroups.owner(f"0::{pod}/{container} (deleted)\n") == owner
    first_version = f"4:memory:{pod}/{container}\n2:cpu,cpuacct:{pod}/{container}\n1:name=systemd:/init\n0::/\n"
    assert cgroups.owner(first_version) == owner

    # From the cgroup namespace of another pod, the kernel tells the way from the reader's own group.
    reader = f"{pod.replace(UID, OTHER).replace(UNDERSCORED, OTHER.replace('-', '_'))}/{OTHER_ID}"
    for start in (reader, reader.replace("burstable", "besteffort"), reader.replace("/burstable/", "/")):
        way = os.path.relpath(f"{pod}/{container}", start)
        assert cgroups.owner(f"0::/{way}\n") == CgroupOwner(UID, ID), way


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"0::/kubepods/burstable/pod{UID}", CgroupOwner(UID, "")),
        (f"0::/kubepods.slice/kubepods-pod{HASH}.slice/crio-{ID}.scope", CgroupOwner(HASH, ID)),
        (f"0::/kubepods/pod{HASH}/{ID}", CgroupOwner(HASH, ID)),
        (
            f"0::/system.slice/containerd.service/kubepods-burstable-pod{UNDERSCORED}.slice:cri-containerd:{ID}",
            CgroupOwner(UID, ID),
        ),
        (f"3:pids:/kubepods/pod{UID}\n2:cpu:/kubepods/pod{UID}/{ID}", CgroupOwner(UID, ID)),
        ("0::/", None),
        ("", None),
        ("nonsense", None),
        ("0::/system.slice/ssh.service", None),
        (f"0::/docker/{ID}", None),
        (f"0::/user.slice/pod{UID}/{ID}", None),
        (f"0::/../../../../user.slice/pod{UID}/{ID}", None),
        (f"0::/../../../../user.slice/burstable/pod{UID}/{ID}", None),
        (f"0::/burstable/pod{UID}/{ID}", None),
        ("0::/kubepods/burstable/pod-of-mine/x", None),
        ("0::/kubepods.slice/kubepods-burstable.slice", None),
        (f"2:cpu:/kubepods/pod{UID}/{ID}\n1:pids:/kubepods/pod{OTHER}/{ID}", None),
        (f"2:cpu:/kubepods/pod{UID}/{ID}\n1:pids:/kubepods/pod{UID}/{OTHER_ID}", None),
    ],
)
def test_other_shapes(text: str, expected: CgroupOwner | None) -> None:
    assert cgroups.owner(text) == expected


@pytest.mark.parametrize("where", POD_DIRECTORIES.values(), ids=POD_DIRECTORIES.keys())
def test_a_pods_directory_is_found(tmp_path: Path, where: str) -> None:
    directory = tmp_path / where[1:]
    for name in (f"cri-containerd-{ID}.scope", OTHER_ID, "init.scope"):
        (directory / name).mkdir(parents=True)
    (directory / "cgroup.procs").touch()
    (directory.parent / directory.name.replace("0123", "9123")).mkdir()
    bases = cgroups.kubepods(tmp_path)
    assert cgroups.pod_directory(bases, UID) == directory
    assert cgroups.pod_directory(bases, OTHER) is None
    assert cgroups.container_directories(directory) == {
        ID: directory / f"cri-containerd-{ID}.scope",
        OTHER_ID: directory / OTHER_ID,
    }


@pytest.mark.parametrize("digits", ["ab" * 32, "f0" * 32])
def test_the_monitor_of_a_container_is_not_its_group(tmp_path: Path, digits: str) -> None:
    for name in (f"crio-conmon-{digits}.scope", f"crio-{digits}.scope"):
        (tmp_path / name).mkdir()
    assert cgroups.container_directories(tmp_path) == {digits: tmp_path / f"crio-{digits}.scope"}
    path = f"/kubepods.slice/kubepods-pod{HASH}.slice/crio-conmon-{digits}.scope"
    assert cgroups.owner_of_path(path) == CgroupOwner(HASH, "")


def test_a_kubelets_group_is_not_looked_for_too_deep_and_what_is_gone_has_none(tmp_path: Path) -> None:
    assert cgroups.kubepods(tmp_path / "none") == ()
    assert cgroups.container_directories(tmp_path / "none") == {}
    (tmp_path / "1/2/3/4/kubepods").mkdir(parents=True)
    (tmp_path / "1/2/3/kubepods").mkdir()
    assert cgroups.kubepods(tmp_path) == (tmp_path / "1/2/3/kubepods",)


def test_version_2_has_one_hierarchy_and_version_1_several(tmp_path: Path) -> None:
    for name in ("memory", "cpu", "unified", "devices"):
        (tmp_path / name).mkdir()
    assert cgroups.hierarchies(tmp_path) == tuple(tmp_path / name for name in ("unified", "memory", "devices"))
    (tmp_path / "cgroup.controllers").touch()
    assert cgroups.hierarchies(tmp_path) == (tmp_path,)
