"""What the demonstration says to its user."""

import signal
from pathlib import Path

import pytest

from localcluster import demo, installation


def test_the_user_is_told_what_to_type_in_another_terminal_and_which_images_exist() -> None:
    said = demo.instructions(Path("/tmp/admin.kubeconfig"), [Path("/opt/kubernetes"), Path("/opt/gpushare")])
    assert (
        "In another terminal:\n\n  export KUBECONFIG=/tmp/admin.kubeconfig PATH=/opt/kubernetes:/opt/gpushare:$PATH"
        in said
    )
    assert all(f"\n  {image}\n" in said for image in installation.SAMPLE_IMAGES)


def test_the_pod_that_the_user_is_told_to_look_at_is_a_sample() -> None:
    said = demo.instructions(Path("kubeconfig"), [])
    assert "gpushare explain gpu-share-pod1" in said
    assert "name: gpu-share-pod1" in (demo.SAMPLES / "gpu-share-pod1.yaml").read_text()


def test_the_first_signal_says_that_the_cluster_is_removed_and_the_second_does_not_interrupt_that(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stop = demo.Stop()
    with pytest.raises(KeyboardInterrupt):
        stop(signal.SIGTERM, None)
    assert capsys.readouterr().out == "\nSIGTERM received: removing the cluster\n"

    stop(signal.SIGTERM, None)
    assert capsys.readouterr().out == ""
