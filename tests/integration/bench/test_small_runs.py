"""Every benchmark that needs no real API server, in a small size."""

import json
from pathlib import Path

import pytest

from testing import traces
from testing.bench import bench

pytestmark = pytest.mark.release


def rows(path: Path) -> list[dict[str, object]]:
    value = json.loads(path.read_text())
    assert {"bench", "date", "machine", "load_before", "load_after", "seconds"} <= value.keys()
    return list(value["rows"])


def test_filter_asks_every_question_of_both_sides(tmp_path: Path) -> None:
    out = bench("filter", f"--json={tmp_path / 'filter.json'}", 8)
    found = rows(tmp_path / "filter.json")
    assert [row["key"] for row in found] == [
        "cold-all",
        "cold",
        "cold-compute",
        "cold-part",
        "warm-all",
        "warm",
        "never",
        "prioritize",
        "changing",
    ]
    assert all(row["nodes"] == 8 and row["bytes"] for row in found)
    assert out.count("| 8 nodes: ") == len(found)


def test_reviews_are_counted_beside_the_floor(tmp_path: Path) -> None:
    bench("webhook", "--reviews=40", f"--json={tmp_path / 'webhook.json'}")
    found = rows(tmp_path / "webhook.json")
    assert [row["way"] for row in found] == ["floor", "webhook"] * 8
    assert {row["key"] for row in found} == {"/mutate", "/isolate", "/validate"}
    assert all(row["ratio"] == 1.0 for row in found if row["way"] == "floor")


def test_a_day_of_churn_has_a_row_for_every_hour(tmp_path: Path) -> None:
    traces.small(tmp_path)
    flags = ["--trace=small", "--policy=binpack", "--settle=1", "--hours=0.1", "--load=80"]
    out = bench("churn", tmp_path, *flags, f"--json={tmp_path / 'churn.json'}")
    [hour] = rows(tmp_path / "churn.json")
    assert hour["hour"] == 0
    assert isinstance(hour["asked %"], float)
    assert isinstance(hour["allocated %"], float)
    assert 0 < hour["allocated %"] <= hour["asked %"]
    assert out.splitlines()[-1].startswith("| 0 | ")


def test_the_plugin_is_timed_from_its_start(tmp_path: Path) -> None:
    bench("plugin_start", "--runs=1", f"--json={tmp_path / 'plugin_start.json'}")
    assert [row["API server"] for row in rows(tmp_path / "plugin_start.json")] == ["there", "there", "away"]


def test_starts_of_containers_are_timed_for_each_way_to_hand_over(tmp_path: Path) -> None:
    bench("hand_over", "--pods=8", f"--json={tmp_path / 'hand_over.json'}")
    assert [row["hand-over"] for row in rows(tmp_path / "hand_over.json")] == ["cdi", "envvar"]


def test_all_are_run_by_one_command_with_a_file_for_each(tmp_path: Path) -> None:
    out = bench("__main__", "--only=usage", f"--results={tmp_path}")
    assert "== 1 of 1: device plugin: reading what 100 pods use" in out
    assert rows(tmp_path / "usage.json")[0]["pods"] == 100


@pytest.mark.parametrize("owned", [False, True])
def test_pods_go_through_the_controller_and_a_run_can_be_repeated(tmp_path: Path, owned: bool) -> None:
    traces.small(tmp_path)
    flags = ["--traces=small", "--policies=binpack", "--rows=ranked,unranked", "--seeds=1-2", *["--owned"] * owned]
    runs = []
    for name in ("first.json", "again.json"):
        out = bench("trace_scheduled", tmp_path, *flags, f"--json={tmp_path / name}")
        assert [line.split()[:3] for line in out.splitlines()[1:]] == [
            ["small", "binpack", "ranked"],
            ["small", "binpack", "unranked"],
        ]
        runs.append(json.loads((tmp_path / name).read_text())["rows"])
    for first, again in zip(*runs, strict=True):
        assert first["at"] == again["at"]
        assert 50 < first["at"]["130"] <= 100
        ranked = {"prioritize", "prioritize-others"} if first["row"] == "ranked" else set()
        assert set(first["p50_ms"]) == {"filter", "bind"} | ranked


def test_simulated_pods_go_where_the_controller_and_kube_schedulers_arithmetic_send_them(tmp_path: Path) -> None:
    """Two programs that share neither the scores nor the ranking of nodes end alike for every seed."""
    traces.small(tmp_path)
    flags = ["--traces=small", "--policies=binpack,spread", "--rows=ranked,default", "--seeds=1-3"]
    found = {}
    for name, server in (("trace_scheduled", "--server=1.36"), ("trace_simulated", "--minor=36")):
        bench(name, tmp_path, *flags, server, f"--json={tmp_path / name}.json")
        rows = json.loads((tmp_path / f"{name}.json").read_text())["rows"]
        found[name] = {(row["policy"], row["row"], row["seed"]): (row["placed"], row["at"]) for row in rows}
    assert len(found["trace_simulated"]) == 12
    assert found["trace_scheduled"] == found["trace_simulated"]
