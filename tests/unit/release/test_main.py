"""What `make image` says where it cannot know when the sources were committed, or a builder does not answer."""

import subprocess
from pathlib import Path

import pytest

from release import __main__ as release


@pytest.fixture
def no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Dockerfile").touch()
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)


def build(tmp_path: Path) -> int:
    return release.main(["image", "--builder=buildah", f"--output={tmp_path / 'dist'}"])


def test_sources_without_a_commit_need_a_date(
    no_repository: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(tmp_path) == 1
    said = capsys.readouterr().err
    assert "not a git repository" in said
    assert said.endswith("set SOURCE_DATE_EPOCH\n")


def test_a_date_is_seconds(
    no_repository: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "2026-11-23")
    assert build(tmp_path) == 1
    assert "SOURCE_DATE_EPOCH is '2026-11-23'; write seconds since 1970" in capsys.readouterr().err


def test_a_builder_that_does_not_answer_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(argv: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(argv, 30)

    monkeypatch.setattr(subprocess, "run", late)
    assert not release._works(["docker", "info"])
