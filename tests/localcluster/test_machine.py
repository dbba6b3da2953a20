"""What a cluster takes from the machine, and how it gives it back, without a cluster."""

import os
import sys
from pathlib import Path

import pytest

from localcluster import cgroups, inotify, leftovers, process, provision


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A group of a cluster whose kubelet removes one of its groups whenever somebody is about to read that."""
    (tmp_path / "cgroup.controllers").touch()
    group = tmp_path / "gpushare180"
    for name, pid in (("pod-a", 11), ("pod-b", 22), ("pod-c", 33)):
        (group / name).mkdir(parents=True)
        (group / name / "cgroup.procs").write_text(f"{pid}\n")
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    scandir = os.scandir

    def removing(path: str | Path) -> object:
        if Path(path).name == "pod-b":
            (group / "pod-b" / "cgroup.procs").unlink(missing_ok=True)
            (group / "pod-b").rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", removing)
    return group


def test_processes_are_found_while_a_kubelet_removes_groups(group: Path) -> None:
    assert cgroups.pids(group.name) == {11, 33}


def test_groups_are_removed_while_a_kubelet_removes_them_too(group: Path) -> None:
    for name in ("pod-a", "pod-b", "pod-c"):
        (group / name / "cgroup.procs").unlink()
    cgroups.remove(group.name)
    assert not group.exists()


def abandoned(state: Path, name: str) -> leftovers.Owned:
    return leftovers.Owned(name, state / name, False, 0, "never", {})


def test_a_cluster_that_cannot_be_removed_stands_in_no_others_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(owned: leftovers.Owned) -> None:
        if owned.name == "gpushare180":
            raise process.ClusterError("control group is still in use")

    monkeypatch.setattr(leftovers, "existing", lambda: [abandoned(tmp_path, f"gpushare{i}") for i in (180, 181)])
    monkeypatch.setattr(leftovers, "remove", remove)
    assert leftovers.remove_abandoned() == [
        "gpushare180, which a killed process had left, cannot be removed: control group is still in use",
        "removed gpushare181, which a killed process had left",
    ]


def proc(directory: Path, limit: int, used: int) -> Path:
    setting = directory / "sys" / inotify.SETTING.replace(".", "/")
    setting.parent.mkdir(parents=True)
    setting.write_text(f"{limit}\n")
    files = directory / "1" / "fd"
    files.mkdir(parents=True)
    for i in range(used):
        (files / str(i)).symlink_to("anon_inode:inotify")
    (files / "999").symlink_to("/dev/null")
    (directory / "self").mkdir()
    return directory


def test_a_machine_with_too_few_inotify_instances_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(process.ClusterError) as error:
        inotify.check(2, proc(tmp_path, limit=128, used=121))
    assert str(error.value) == (
        "a cluster of 2 nodes needs about 24 inotify instances, but 121 of this machine's 128 are in use; end other "
        "clusters (python -m localcluster down), or raise the limit: sysctl -w fs.inotify.max_user_instances=512"
    )


def test_a_machine_with_enough_inotify_instances_starts(tmp_path: Path) -> None:
    assert inotify.in_use(proc(tmp_path, limit=128, used=104)) == 104
    inotify.check(2, tmp_path)


def test_a_step_that_takes_too_long_says_that_running_it_again_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provision, "PROGRESS_PERIOD_S", 0.01)
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(provision.ProvisionError, match=r"compiling: not finished after 0 s\. Run the command again"):
        provision.run_step(provision.say_nothing, "compiling", sleep, tmp_path / "log", timeout_s=0)
    with pytest.raises(provision.ProvisionError, match=r"exit status 3 after .*Run the command again"):
        provision.run_step(
            provision.say_nothing, "compiling", [sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log"
        )
