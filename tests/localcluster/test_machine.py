"""What a cluster takes from the machine and gives back, and what the demonstration says, without a cluster."""

import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from localcluster import apt, demo, inotify, installation, leftovers, process, provision, runtimes
from localcluster.provision import ProvisionError, Say, Version
from localcluster.runtimes import ContainerRuntime


def test_a_cluster_that_cannot_be_removed_stands_in_no_others_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(owned: leftovers.Owned) -> None:
        if owned.name == "gpushare180":
            raise process.ClusterError("control group is still in use")

    abandoned = [leftovers.Owned(f"gpushare{i}", tmp_path / str(i), False, 0, "never", {}) for i in (180, 181)]
    monkeypatch.setattr(leftovers, "existing", lambda: abandoned)
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


OLD, NEW = Version(1, 20, 2), Version(1, 36, 2)


@pytest.mark.parametrize(
    ("kubernetes", "there", "chosen"),
    [
        (OLD, ("1.6.20", "1.7.24"), "1.7.24"),
        (OLD, ("2.1.9", "1.7.24"), "1.7.24"),
        (Version(1, 23), ("2.1.9", "1.7.24"), "2.1.9"),
        (NEW, ("2.1.9", "1.7.24"), "2.1.9"),
        (NEW, ("1.6.20", "1.7.24"), "1.7.24"),
        (OLD, ("1.6.20", "2.1.9"), None),
        (NEW, (), None),
    ],
)
def test_the_first_runtime_with_cdi_that_the_kubelet_can_talk_to_is_used(
    kubernetes: Version, there: tuple[str, ...], chosen: str | None
) -> None:
    known = [ContainerRuntime(Path(version), Version.parse(version), cdi=False) for version in there]
    best = runtimes.best(known, kubernetes)
    assert (best and (str(best.version), best.cdi)) == (chosen and (chosen, True))


@pytest.mark.parametrize(
    ("version", "cdi", "label"),
    [
        ("1.6.20", False, []),
        ("1.7.24", False, []),
        ("1.7.24", True, ["gpushare.dev/hand-over=cdi"]),
        ("2.1.9", True, []),
        ("2.1.9", False, ["gpushare.dev/hand-over=envvar"]),
    ],
)
def test_a_node_is_labelled_where_its_version_does_not_say_whether_it_has_cdi(
    version: str, cdi: bool, label: list[str]
) -> None:
    runtime = ContainerRuntime(Path("bin"), Version.parse(version), cdi=cdi)
    assert list(installation.hand_over_label(runtime)) == label


def test_a_machine_for_which_none_can_be_had_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "os-release").write_text("ID=other\n")
    monkeypatch.setattr(apt, "OS_RELEASE", tmp_path / "os-release")
    monkeypatch.setattr(provision, "on_path", lambda _: None)
    monkeypatch.setenv(provision.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(provision.ASSETS_VARIABLE, str(tmp_path))
    with pytest.raises(ProvisionError, match=r"no containerd with CDI for Kubernetes 1\.20\.2: install 1\.7, or 2\.0"):
        runtimes.with_cdi(OLD, provision.say_nothing)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_the_command_runs_the_module_that_others_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise there are two classes of versions, which cannot be compared."""
    monkeypatch.setattr(provision, "main", lambda: 7)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("localcluster.provision", run_name="__main__")
    assert ended.value.code == 7


def test_the_pod_that_the_user_is_told_to_look_at_is_a_sample() -> None:
    said = demo.instructions(Path("kubeconfig"), [])
    assert "gpushare explain gpu-share-pod1" in said
    assert "name: gpu-share-pod1" in (demo.SAMPLES / "gpu-share-pod1.yaml").read_text()


def test_without_cdi_the_demonstration_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def none_here(_kubernetes: Version, _say: Say) -> NoReturn:
        raise ProvisionError("no containerd with CDI")

    monkeypatch.setattr(runtimes, "with_cdi", none_here)
    assert not demo.with_cdi(Version(1, 20), said.append)
    assert said == ["both nodes hand GPUs over by the variable: no containerd with CDI"]


def test_the_first_signal_says_that_the_cluster_is_removed_and_the_second_does_not_interrupt_that(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stop = demo.Stop()
    with pytest.raises(KeyboardInterrupt):
        stop(signal.SIGTERM, None)
    assert capsys.readouterr().out == "\nSIGTERM received: removing the cluster\n"

    stop(signal.SIGTERM, None)
    assert capsys.readouterr().out == ""
