"""What `make lint` says of the weight of the house."""

from pathlib import Path

import pytest

from release import house


def test_lines_and_files_by_top_folder_beside_those_of_the_last_release() -> None:
    now = {"controller/a.py": 10, "webhook/b.py": 5, "tests/t.py": 7}
    then = {"controller/a.py": 30, "controller/c.py": 10}
    rows = [row.split() for row in house.table(now, then)[1:]]
    assert rows == [
        ["controller", "10", "1", "40", "2"],
        ["tests", "7", "1", "0", "0"],
        ["webhook", "5", "1", "0", "0"],
        ["product", "15", "2", "40", "2"],
    ]


def test_generated_code_does_not_count() -> None:
    assert not [path for path in house.lines() if path.endswith("_pb2.py")]


def test_a_clone_without_the_last_release_is_weighed_all_the_same() -> None:
    assert house.lines("0" * 40) == {}
    assert house.lines()


@pytest.mark.parametrize(
    ("lines", "reason", "fails"),
    [(59, "", True), (60, "", False), (59, "# A file of its own: a door to YAML\n", False)],
)
def test_a_small_module_with_one_importer_beside_it_needs_a_reason(
    lines: int,
    reason: str,
    fails: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = "controller/small.py"
    (tmp_path / "controller").mkdir()
    (tmp_path / path).write_text(reason, encoding="utf-8")
    monkeypatch.setattr(house, "ROOT", tmp_path)
    monkeypatch.setattr(house, "lines", lambda _commit="": {path: lines})
    monkeypatch.setattr(house, "alone", lambda: {"controller.small": "controller.big"})
    assert bool(house.main()) is fails
    assert (path in capsys.readouterr().err) is fails
