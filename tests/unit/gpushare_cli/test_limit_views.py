"""Every view says the same of what holds a pod to its share of a GPU."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson
import pytest

import gpushare_cli.dashboard
from gpushare.model.allocation import Grant
from gpushare.model.gpu import Limit, Strength
from gpushare_cli import __main__ as cli
from gpushare_cli.dashboard import views
from gpushare_cli.dashboard.feed import Feed
from gpushare_cli.dashboard.model import Overview, Totals
from testing.builders import make_grant, make_inventory, make_node
from testing.cli.calling import reached
from testing.cli.explaining import kube_of
from testing.cli.podding import bound

PAGE: Final = Path(gpushare_cli.dashboard.__file__).parent / "page/index.html"
WHOLE: Final = (make_grant(0, gib=8),)
PART: Final = (make_grant(0, gib=7),)
HALVES: Final = (make_grant(0, gib=4), make_grant(0, gib=4, container="second"))
_BAR: Final = r"\d/8 GiB +(\w[\w ]*\w) +1 pod"
VARIABLES: Final = "nothing: no variable tells its programs about their share"


@pytest.mark.parametrize(
    ("limit", "grants", "shown", "explained"),
    [
        (Limit.MIG, WHOLE, Limit.MIG, "the hardware: they are MIG instances"),
        (Limit.MIG, PART, Limit.ADVISORY, VARIABLES),
        (Limit.MIG, HALVES, Limit.ADVISORY, VARIABLES),
        (Limit.CGROUP, PART, Limit.CGROUP, "the NVIDIA driver, for the pod's cgroup"),
        (Limit.WATCHDOG, PART, Limit.WATCHDOG, "the watchdog, after the fact"),
    ],
    ids=["a MIG instance", "a part of one", "a part for each container", "a cgroup", "the watchdog"],
)
def test_every_view_says_the_same_of_what_holds_a_pod_to_its_share(
    limit: Limit,
    grants: tuple[Grant, ...],
    shown: Limit,
    explained: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = make_inventory(8)
    node = make_node(replace(plain, gpus=(replace(plain.gpus[0], limit=limit),)))
    pod = bound("web", *grants)
    api = kube_of([node, pod])
    reached(monkeypatch, api)

    def said(*arguments: str) -> str:
        assert cli.main([*arguments]) == 0
        return capsys.readouterr().out

    feed = Feed()
    feed.publish(
        {"node-a": views.of_node(node, [pod], frozenset(), None)},
        Overview(server="", complete=True, scope="", totals=Totals()),
        (),
        (),
    )
    page = b"".join(feed.since(0)[1]).decode()
    explain, inspect = ("explain", "-n", "default", "web"), ("inspect", "--limits")
    explanation, table = orjson.loads(said(*explain, "-o", "json")), r" 0 +(\S+) +\d GiB +\?"
    limits = {
        "explain": re.findall(table, said(*explain)),
        "explain -o json": [share["limit"] for share in explanation["containers"]],
        "inspect --limits": re.findall(table, said(*inspect)),
        "inspect --limits -o json": [row["limit"] for row in orjson.loads(said(*inspect, "-o", "json"))["limits"]],
        "dashboard": re.findall(r'"limit":"(.*?)"', page),
    }
    bars = {name: re.findall(_BAR, said(*name.split())) for name in ("inspect --bars", "top")}
    strength = shown.strength.value
    assert {view: set(words) for view, words in limits.items()} == {view: {shown.value} for view in limits}
    assert bars == {view: [strength.replace("after the", "after")] for view in bars}
    assert re.findall(r'"strength":"(.*?)"', page) == [strength]
    assert explanation["limitHeldBy"] == explained


def test_the_legend_of_the_page_has_every_strength() -> None:
    (legend,) = re.findall("<li>The word above a bar (.*)</li>", PAGE.read_text(encoding="utf-8"))
    assert re.findall("<b>(.*?)</b>", legend) == [strength.value for strength in Strength]
