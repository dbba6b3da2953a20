"""What a cluster takes from the machine, and how it gives it back, without a cluster."""

import subprocess
import sys
from pathlib import Path

import pytest

from localcluster import inotify, leftovers, process, provision


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


def test_a_process_id_of_somebody_else_is_told_apart() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = leftovers.start_time(child.pid)
        child.communicate(b"\n")
    assert started
    assert leftovers.start_time(child.pid) != started


def test_a_child_that_ends_is_reported_with_its_log(tmp_path: Path) -> None:
    child = process.Process("child", [sys.executable, "-c", "raise SystemExit('the reason')"], tmp_path / "log")
    child.start()
    with pytest.raises(process.ClusterError, match="the reason"):
        process.wait_until(lambda: False, "never", 20, child)


def test_a_child_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child = process.Process("child", [sys.executable, "-c", code], tmp_path / "log")
    child.start()
    process.wait_until(lambda: "up" in child.tail(), "up", 20, child)
    child.stop(grace_s=0.2)
    assert not child.alive


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (["1.20.2"], None),
        (["1.20.2", "1.36.2", "1.9.11"], "1.36.2"),
        (["1.20.2", "1.36.2", "1.37.0-without-scheduler"], "1.36.2"),
        (["1.36.2"], "1.36.2"),
    ],
)
def test_a_newer_control_plane_is_one_in_the_cache_beside_that_of_the_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: list[str], expected: str | None
) -> None:
    """Only that of 1.20.2 has the programs of nodes too."""
    monkeypatch.setenv(provision.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(provision.ASSETS_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "")
    for version in versions:
        number, _, lacking = version.partition("-without-")
        directory = tmp_path / f"kubernetes-{number}"
        directory.mkdir()
        for name in provision.KUBERNETES if number == "1.20.2" else provision.CONTROL_PLANE:
            if not lacking or not name.endswith(lacking):
                (directory / name).write_text(f"#!/bin/sh\necho Kubernetes v{number}\n")
                (directory / name).chmod(0o755)
    found = provision.newer_control_plane()
    assert (found.name if found else None) == (f"kubernetes-{expected}" if expected else None)
