"""Which containerd a node gets, and from where."""

import runpy
from pathlib import Path

import pytest

from localcluster import apt, installation, provision, runtimes
from localcluster.provision import ProvisionError, Version
from localcluster.runtimes import ContainerRuntime

OLD, NEW = Version(1, 20, 2), Version(1, 36, 2)


def known(*versions: str) -> list[ContainerRuntime]:
    return [ContainerRuntime(Path(version), Version.parse(version), cdi=False) for version in versions]


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
    best = runtimes.best(known(*there), kubernetes)
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
