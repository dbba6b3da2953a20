"""What the demonstration says to its user."""

import signal
from pathlib import Path
from typing import NoReturn

import pytest

from localcluster import demo, runtimes
from localcluster.provision import ProvisionError, Say, Version


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
