"""GPUs as bars of characters: 80 columns, colours only where they are wanted, and nothing that obeys a tenant."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.model.gpu import GpuHealth, Limit
from gpushare_cli import __main__ as cli
from gpushare_cli import bars, console, top
from gpushare_cli.console import Line, Look
from gpushare_cli.dashboard import views
from gpushare_cli.dashboard.picture import Picture
from gpushare_cli.dashboard.views import NodeView, Overview, Totals
from gpushare_cli.explain.waiting import Waiting
from gpushare_cli.usage import NodeUse, Use
from testing.builders import Json, make_grant, make_inventory, make_node
from testing.cli.calling import reached
from testing.cli.explaining import kube_of
from testing.cli.podding import bound
from testing.fakes.kube import Call

PLAIN = Look()
ESCAPES = re.compile(r"\x1b\[[0-9]+m")


def node(*pods: Json, use: NodeUse | None = None, **gpu: Any) -> NodeView:
    inventory = make_inventory(16, 16)
    changed = replace(inventory, gpus=tuple(replace(each, **gpu) for each in inventory.gpus))
    found = views.of_node(make_node(changed), pods, frozenset(), use)
    assert found is not None
    return found


def waits(namespace: str, name: str, reason: str, others: int = 0) -> Waiting:
    told = {"asks": "", "headline": "", "reason": reason, "since": ""}
    return Waiting(namespace=namespace, name=name, others=others, good=False, **told)


def written(lines: Iterable[Line], look: Look = PLAIN) -> list[str]:
    return console.printed(lines, look).splitlines()


def drawn(view: NodeView, look: Look = PLAIN) -> list[str]:
    return written(bars.of_nodes([view], unicode=look.unicode), look)


def page(shown: Picture, look: Look = PLAIN, *, nodes: Sequence[str] = ()) -> list[str]:
    return written(top.lines(shown, nodes, look), look)


def test_a_bar_is_as_full_as_its_gpu_and_neighbours_differ() -> None:
    view = node(bound("a", make_grant(0, gib=4)), bound("b", make_grant(0, gib=8)), bound("c", make_grant(1, gib=16)))
    assert drawn(view) == [
        "node-a  28/32 GiB  Tesla T4  192.168.0.71",
        "  0    [######============......]  12/16 GiB                 advisory   2 pods",
        "  1    [########################]  16/16 GiB                 advisory   1 pod",
    ]
    assert "[██████░░░░░░░░░░░░░░░░░░]" in drawn(node(bound("a", make_grant(0, gib=4))), Look(unicode=True))[1]


def test_an_oversubscribed_gpu_says_by_how_much() -> None:
    view = node(bound("a", make_grant(0, gib=10)), bound("b", make_grant(0, gib=10)), extra_mib=8 * 1024)
    assert drawn(view)[1:3] == [
        "  0    [##########==========....]  20/16 GiB                 advisory   2 pods",
        "        oversubscribed: up to 24 GiB may be granted; 125 % of its memory is",
    ]


@pytest.mark.parametrize("pods", [1, 24, 60])
def test_a_bar_is_never_longer_than_its_place(pods: int) -> None:
    view = node(*(bound(f"p{i}", make_grant(0, gib=1)) for i in range(pods)))
    assert [line.index("]") for line in drawn(view)[1:]] == [32, 32]


def test_a_gpu_that_takes_nothing_new_says_why() -> None:
    view = node(health=GpuHealth.UNHEALTHY, reason="Xid 79")
    assert drawn(view)[2] == "        unhealthy: Xid 79"
    assert page(picture(view))[0].endswith("  2 out of use")


def test_of_a_node_that_may_not_be_read_nothing_is_made_up() -> None:
    view = views.of_unread_node(NodeName("node-a"), [bound("a", make_grant("GPU-x", gib=3))], make_inventory().unit)
    assert view is not None
    assert drawn(view) == ["node-a  3/? GiB  model not known", f"  0    [{'#' * 24}]  3/? GiB{' ' * 30}1 pod"]
    assert drawn(replace(node(), address="unknown"))[0] == "node-a  0/32 GiB  Tesla T4"


EVIL = "\x1b[2J\x1b]0;x\x07\u202e\n"


@pytest.mark.parametrize("look", [PLAIN, Look(colour=True, unicode=True)])
def test_nothing_that_a_tenant_writes_reaches_the_terminal_as_a_command(look: Look) -> None:
    card = replace(node(bound("a", make_grant(0, gib=4))).cards[0], why=EVIL, model=EVIL)
    view = NodeView(name=EVIL, address=EVIL, known=True, cards=(card,), left_out=(EVIL,))
    overview = Overview(server=EVIL, complete=True, scope=EVIL, totals=Totals(waiting=1), stale=EVIL)
    found = "\n".join(
        page(picture(view, overview=overview, waiting=(waits(EVIL, EVIL, EVIL),)), replace(look, width=1000))
    )
    rest = ESCAPES.sub("", found)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", rest)
    assert ("\x1b" in found) is look.colour
    assert "\\u001b[2J" in found


@pytest.mark.parametrize(
    "words", ["[red]x[/]", "[link=http://evil.example]x[/link]", ":smile: :x:", "[/]", "1 True a/b"]
)
def test_what_looks_like_markup_is_text(words: str) -> None:
    card = replace(node(bound("a", make_grant(0, gib=4))).cards[0], why=words)
    [head, _, why] = drawn(NodeView(name=words, address=words, known=True, cards=(card,)), Look(colour=True, width=200))
    assert ESCAPES.sub("", head).startswith(f"{words}  ")
    assert why == f"\x1b[31m        {words}\x1b[0m"


def picture(*nodes: NodeView, overview: Overview | None = None, waiting: tuple[Waiting, ...] = ()) -> Picture:
    shown = overview or Overview(server="", complete=True, scope="", totals=views.totals(nodes, len(waiting)))
    return Picture(version=1, nodes={each.name: each for each in nodes}, overview=shown, waiting=waiting)


def test_no_line_is_wider_than_the_terminal() -> None:
    long = waits("n", "p" * 200, "x " * 200, others=3)
    found = page(picture(node(bound("a", make_grant(0)), limit=Limit.MPS), waiting=(long,)))
    assert max(map(len, found)) == 80
    coloured = page(picture(node(), waiting=(long,)), Look(colour=True))
    assert max(len(ESCAPES.sub("", line)) for line in coloured) == 80


def test_of_a_node_that_is_named_the_pods_are_listed_below_their_gpus() -> None:
    use = NodeUse(uses={("default", "a", "main", "GPU-0"): Use(1536)})
    view = node(bound("a", make_grant(0, gib=4)), bound("b", make_grant(0, gib=8)), use=use, limit=Limit.CGROUP)
    both = picture(view, replace(node(), name="other"))
    assert page(both, nodes=["node-a"])[1:-1] == [
        "node-a  12/32 GiB  Tesla T4  192.168.0.71",
        "  0    [######============......]  12/16 GiB      used 1.5   enforced   2 pods",
        "        4 GiB     used 1.5   default/a",
        "        8 GiB                default/b",
        "  1    [........................]  0/16 GiB                  enforced",
    ]
    assert "default/" not in " ".join(page(both))


@pytest.mark.parametrize(("look", "mark"), [(Look(width=9), ">"), (Look(width=9, unicode=True), "…")])
def test_a_line_that_is_cut_says_so(look: Look, mark: str) -> None:
    assert written([[("12345", ""), ("6789   ", "")]], look) == ["123456789"]
    assert written([[("12345", ""), ("67890", ""), ("x", "red")]], look) == [f"12345678{mark}"]
    wide = [[("中文字", "")]]  # each takes two columns
    assert (written(wide, replace(look, width=6)), written(wide, replace(look, width=5))) == (
        ["中文字"],
        [f"中文{mark}"],
    )


def test_what_does_not_fit_is_counted() -> None:
    lines = [[(word, "")] for word in "abcd"]
    assert top.fitted(lines[:3], 3) == lines[:3]
    assert written(top.fitted(lines, 3)) == ["a", "b", "2 more lines: name a NODE, or gpushare top --once | less"]


def test_pods_that_wait_are_told_with_the_reason_and_the_rest_is_counted() -> None:
    three = waits("n", "p", "why", others=2)
    assert written(bars.of_waiting([three] * 6, 18))[:3] == ["Waiting", "  n/p and 2 more", "    why"]
    assert written(bars.of_waiting([three] * 6, 16))[-1] == "  and 1 more pod; see gpushare dashboard"
    assert written(bars.of_waiting([three] * 5, 15))[-1] == "    why"
    assert written(bars.of_waiting([], 0)) == []


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = kube_of([make_node(make_inventory(16)), bound("web", make_grant(0, gib=4))])
    reached(monkeypatch, found)
    yield found
    found.close()


def test_inspect_adds_bars_and_changes_nothing_else(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect"]) == 0
    before = capsys.readouterr().out
    assert cli.main(["inspect", "--bars"]) == 0
    after = capsys.readouterr().out
    assert after.startswith(before)
    assert "  0    [" in after.removeprefix(before)


def test_top_prints_once_and_plainly_where_it_is_no_terminal(
    cluster: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "_LOOK_S", 0.0)
    assert cli.main(["top"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "1 GPU on 1 node  4/16 GiB  1 pod"
    assert "\x1b" not in out
    assert err == "note: what is used on node node-a is not known: there is no gpushare-device-plugin on it\n"
    cluster.vanish("/api/v1/nodes/node-a")
    assert cli.main(["top"]) == 1
    assert "is the device plugin running?" in capsys.readouterr().err


def test_top_that_prints_once_ends_while_the_server_is_away(
    cluster: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has said what may be read, and then nothing more."""
    away = kube.UnreachableError("connection refused")
    seen: Counter[str] = Counter()

    def again(call: Call) -> bool:
        seen[call.path] += 1
        return seen[call.path] > 1

    cluster.fail_next(again, away, times=10**6)
    monkeypatch.setattr(top, "_ONCE_S", 0.0)
    assert cli.main(["top"]) == 1
    assert "error: the API server has not answered all questions for 0 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
    ],
)
def test_colours_are_for_terminals_that_have_them_and_users_who_want_them(
    variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert Look.of_output(80).colour is coloured
