"""Benchmarks on a real API server, in small sizes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.bench.commands import bench

pytestmark = [pytest.mark.e2e, pytest.mark.release]


def rows(path: Path) -> list[dict[str, Any]]:
    value = json.loads(path.read_text(encoding="utf-8"))
    assert value["kubernetes"]
    return list(value["rows"])


def test_a_bind_is_one_request(tmp_path: Path) -> None:
    bench("bind", "--pods=4", "--nodes=4", f"--json={tmp_path / 'bind.json'}")
    *ways, calls = rows(tmp_path / "bind.json")
    assert [row["way"] for row in ways] == ["Bindings alone", "Binder", "over HTTP"] * 2
    assert calls["Bindings"] == 4 * 6 * 6  # of six ways in six rounds
    assert calls["other requests about pods"] == 0


def test_both_schedulers_bind_all_pods(tmp_path: Path) -> None:
    bench("bound", "--pods=4", f"--json={tmp_path / 'bound.json'}", 4)
    plain, ours = rows(tmp_path / "bound.json")
    assert (plain["way"], plain["ratio"], ours["way"]) == ("plain-scheduler", 1.0, "gpushare-scheduler")


def test_the_installed_controller_starts_and_answers(tmp_path: Path) -> None:
    bench("server", "--pods=2", f"--json={tmp_path / 'server.json'}", 4)
    found = rows(tmp_path / "server.json")
    starts = [row for row in found if row["key"] == "start"]
    assert [(row["GPU pods"], row["other pods"]) for row in starts] == [(8, 0), (8, 8)]
    assert all(row["bytes"] for row in found if row["key"] != "start")
    assert {"warm-all", "cold-all", "prioritize", "changing"} <= {row["key"] for row in found}
