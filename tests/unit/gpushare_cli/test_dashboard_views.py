"""What the dashboard and `top` show of a cluster, as values and as bars of characters that obey no tenant."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare import names
from gpushare.cluster.pod_records import NonGpuPod
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.model.gpu import GpuHealth, Limit
from gpushare.runtime.clock import SystemClock
from gpushare.units import GIB
from gpushare.wire import interop
from gpushare_cli import bars, console, reading, top
from gpushare_cli.console import Line, Look
from gpushare_cli.dashboard import views
from gpushare_cli.dashboard.access import Scope
from gpushare_cli.dashboard.picture import Picture
from gpushare_cli.dashboard.views import NodeView, Overview, Totals, Waiting
from gpushare_cli.dashboard.watching import Watched, reduced_event, reduced_pod
from gpushare_cli.reading import Objects, Settings
from gpushare_cli.usage import NodeUse, Use
from testing import clusters
from testing.builders import Json, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.calling import Run, reached
from testing.cli.explaining import kube_of
from testing.cli.podding import bound, mutated
from testing.fakes.kube import Call, FakeKube

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


LARGE = "x" * 100_000
SMALL = 4_000


def size(value: Any) -> int:
    return len(repr(value))


def view_of(*pods: Json, gib: tuple[int, ...] = (15, 15), use: NodeUse | None = None, **gpu: object) -> NodeView:
    inventory = make_inventory(*gib)
    changed = replace(inventory, gpus=tuple(replace(each, **gpu) for each in inventory.gpus))  # type: ignore[arg-type] # of a test
    found = views.of_node(make_node(changed), pods, frozenset(), use)
    assert found is not None
    return found


def placed(pod: Json, at: str) -> Json:
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]
    return pod


def test_each_pod_is_a_block_of_each_gpu_that_it_holds() -> None:
    found = view_of(bound("a", make_grant(0, gib=3)), bound("b", make_grant(0, 1, gib=6)))
    shares = [[(block.name, block.granted_mib) for block in card.blocks] for card in found.cards]
    assert shares == [[("a", 3 * 1024), ("b", 6 * 1024)], [("b", 6 * 1024)]]
    assert view_of(bound("a", make_grant(0, gib=15, whole=True))).cards[0].blocks[0].whole


def test_use_is_the_sum_of_a_pods_containers_and_unknown_where_it_is_not_measured() -> None:
    keys = [("default", "a", "main", "GPU-0"), ("default", "a", "", "GPU-0"), ("default", "gone", "main", "GPU-0")]
    use = NodeUse(uses=dict(zip(keys, (Use(100), Use(20), Use(999)), strict=True)))
    found = view_of(bound("a", make_grant(0, gib=3)), bound("b", make_grant(1)), use=use)
    assert [block.used_mib for card in found.cards for block in card.blocks] == [120, None]
    assert [card.used_mib for card in found.cards] == [120, None]


def told(pod: Json, index: str = "", capacity: str = "") -> Json:
    notes = {f"{names.PREFIX_INDEX}main": index, f"{names.PREFIX_CAPACITY}main": capacity}
    pod["metadata"]["annotations"] |= {key: value for key, value in notes.items() if value}
    return pod


def test_a_node_that_may_not_be_read_has_the_gpus_that_readable_pods_hold() -> None:
    pods = [told(bound("a", make_grant("GPU-x", gib=3)), "5", "15"), bound("b", make_grant("GPU-y", gib=2))]
    found = views.of_unread_node(NodeName("node-a"), pods, GIB)
    assert found is not None
    assert not found.known
    shown = [(card.label, card.uuid, card.total_mib, card.granted_mib, card.limit) for card in found.cards]
    assert shown == [("5", "GPU-x", 15 * 1024, 3 * 1024, "?"), ("6", "GPU-y", 0, 2 * 1024, "?")]
    assert [block.limit for card in found.cards for block in card.blocks] == ["?", "?"]


@pytest.mark.parametrize("index", ["9" * 5000, "-1", "x", "٣", "0,0"])
def test_an_odd_number_of_a_gpu_is_not_believed(index: str) -> None:
    found = views.of_unread_node(NodeName("node-a"), [told(bound("a", make_grant("GPU-x")), index)], GIB)
    assert found is not None
    assert [card.label for card in found.cards] == ["0"]


def test_pods_that_hold_nothing_and_a_node_without_gpus_show_no_node() -> None:
    assert views.of_node(make_node(), [], frozenset(), None) is None
    ended = bound("a", make_grant("GPU-x"), phase="Succeeded")
    unreadable = bound("b", make_grant("GPU-x"), annotations={names.ANNOTATION_ALLOCATION: "{"})
    assert views.of_unread_node(NodeName("node-a"), [ended, make_pod(node="node-a"), unreadable], GIB) is None


def test_totals_count_a_pod_on_two_gpus_once() -> None:
    one = view_of(bound("a", make_grant(0, 1)))
    uses = [NodeUse(uses={("default", "b", "main", "GPU-0"): Use(mib)}) for mib in (5, 6)]
    others = [view_of(bound("b", make_grant(0, 1)), use=use) for use in uses]
    alone, sums = views.totals([one]), views.totals([one, *others], 4)
    assert (alone.nodes, alone.gpus, alone.pods, alone.granted_mib, alone.total_mib) == (1, 2, 1, 6 * 1024, 30 * 1024)
    assert (sums.nodes, sums.gpus, sums.pods, sums.waiting) == (3, 6, 2, 4)
    assert (sums.granted_mib, sums.total_mib) == (18 * 1024, 90 * 1024)
    assert (alone.used_mib, sums.used_mib) == (None, 11)


# Pods that wait.


def pending(name: str, gib: int, *, owner: str = "", created: str = "2026-11-01T11:00:00Z") -> Json:
    pod = mutated(make_pod(make_container(gpu_mem=gib), name=name))
    pod["metadata"]["creationTimestamp"] = created
    if owner:
        pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "uid": owner, "controller": True}]
    return pod


def objects(*pods: Json) -> Objects:
    return Objects(nodes=(make_node(make_inventory(15)),), pods=pods)


def queued(*pods: Json) -> list[tuple[str, int, str, bool]]:
    found = views.waiting(objects(*pods), Settings())
    return [(each.name, each.others, each.reason, each.good) for each in found]


def test_a_pod_that_fits_nowhere_says_so_in_the_words_of_explain_and_one_that_fits_waits_for_moments() -> None:
    assert queued(pending("a", 14), bound("b", make_grant(0, gib=3))) == [
        ("a", 0, "needs 14 GiB on one GPU; free per GPU on node-a: 12 GiB", False)
    ]
    [(_, _, reason, good)] = queued(pending("a", 3))
    assert good
    assert reason.startswith("there is room on node-a")


def test_pods_of_one_owner_are_told_once_and_the_first_that_came_is_named() -> None:
    late, early = pending("late", 20, owner="rs"), pending("early", 20, owner="rs", created="2026-11-01T10:00:00Z")
    assert [each[:2] for each in queued(late, early, pending("other", 20, owner="rs2"))] == [("early", 1), ("other", 0)]


def test_a_pod_on_a_node_without_gpus_of_ours_waits_too() -> None:
    found = views.waiting(objects(mutated(make_pod(name="a", node="node-a"))), Settings())
    assert [(each.headline, each.good) for each in found] == [("on node-a without GPUs", True)]


def test_a_request_that_cannot_be_understood_says_what_to_do() -> None:
    [(_, _, reason, _)] = queued(mutated(make_pod(make_container(gpu_mem="-1"), name="a")))
    assert reason.endswith("fix that, delete the pod and create it again")


def test_no_more_than_a_number_of_kinds_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MOST_EXPLAINED", 1)
    assert [each[2] for each in queued(pending("a", 20), pending("b", 20))][1] == views.NOT_EVALUATED


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (pending("a", 3), True),
        (bound("a", make_grant(0)), False),
        (make_pod(node="node-a"), True),
        (make_pod(phase="Succeeded"), False),
    ],
)
def test_a_quick_look_tells_pods_that_may_wait(pod: Json, expected: bool) -> None:
    assert views.may_wait(pod) is expected


# The last hour.


def test_what_pods_got_in_the_last_hour_is_told_the_newest_first() -> None:
    stamps = ["2026-11-01T10:59:59Z", "2026-11-01T11:00:00Z", "2026-11-01T12:00:00Z", "2036-01-01T00:00:00Z", "", "x"]
    pods = [placed(bound(f"p{i}", make_grant(0, 1, gib=3)), stamp) for i, stamp in enumerate(stamps)]
    found = views.latest(views.grants(view_of(*pods)), NOW)
    assert [(each.at, each.subject) for each in found] == [(stamps[i], f"default/p{i}") for i in (2, 1)]
    assert {each.text for each in found} == {"got 3 GiB of GPU 0, 3 GiB of GPU 1 on node-a"}


def test_a_namespace_displaces_nothing_of_others_by_what_it_writes() -> None:
    said = [
        views.Happening(at=views.earliest(NOW), warning=False, subject=who, text="") for who in ("a/p", "GPU 0 of n")
    ]
    loud = [replace(said[0], at=f"2026-11-01T11:{i // 60:02}:{i % 60:02}Z", subject=f"b/{i}") for i in range(600)]
    found = views.latest([*said, *loud], NOW)
    assert [each.subject for each in found] == [*(f"b/{i}" for i in range(599, 559, -1)), "a/p", "GPU 0 of n"]


def test_an_ended_pod_tells_when_it_gave_its_memory_back() -> None:
    pod = bound("a", make_grant(0), phase="Succeeded")
    ends = ["2026-11-01T11:10:00Z", "2026-11-01T11:20:00Z"]
    pod["status"]["containerStatuses"] = [{"state": {"terminated": {"finishedAt": end}}} for end in ends]
    found = views.ended(pod)
    assert found is not None
    assert (found.at, found.warning) == (ends[1], False)
    assert found.text == "ended on node-a (Succeeded), and gave its GPU memory back"


@pytest.mark.parametrize(
    "pod", [bound("a", make_grant(0)), make_pod(phase="Failed"), make_pod(phase="Failed", node="n")]
)
def test_pods_that_gave_nothing_back_did_not_end_in_the_picture(pod: Json) -> None:
    assert views.ended(pod) is None


def test_of_pods_that_held_nothing_any_more_it_is_not_told_that_they_were_deleted() -> None:
    assert views.deleted(bound("a", make_grant(0), phase="Succeeded"), NOW) is None
    assert views.deleted(make_pod(), NOW) is None


def test_a_gpu_that_changes_its_health_or_is_gone_is_told_once() -> None:
    good, bad = view_of(), view_of(health=GpuHealth.UNHEALTHY, reason="Xid 79")
    assert [(each.subject, each.text, each.warning) for each in views.health_changes("node-a", good, bad, NOW)] == [
        ("GPU 0 of node-a", "is unhealthy: Xid 79; nothing new is placed on it", True),
        ("GPU 1 of node-a", "is unhealthy: Xid 79; nothing new is placed on it", True),
    ]
    assert [each.text for each in views.health_changes("node-a", bad, good, NOW)] == ["is healthy again"] * 2
    assert list(views.health_changes("node-a", good, good, NOW)) == []
    assert list(views.health_changes("node-a", None, bad, NOW)) == []
    two, one = view_of(), view_of(gib=(15,))
    assert [each.text for each in views.health_changes("node-a", two, one, NOW)] == ["is no longer listed by its node"]
    assert len(list(views.health_changes("node-a", two, None, NOW))) == 2


# What is kept of objects.


def test_of_a_bound_pod_only_what_is_shown_is_kept() -> None:
    pod = told(bound("a", make_grant(0)), "0", "15")
    binding = dict(pod["metadata"]["annotations"])
    pod["metadata"]["annotations"]["other.example/x"] = "x"
    pod["metadata"]["managedFields"] = [{"manager": "x"}]
    pod["spec"] |= {"volumes": [{"name": "v"}], "tolerations": [{}]}
    pod["spec"]["containers"][0] |= {
        "command": ["sleep"],
        "env": [*pod["spec"]["containers"][0]["env"], {"name": "KEY"}],
    }
    kept = reduced_pod(pod)
    assert isinstance(kept, dict)
    assert kept["spec"].keys() == {"nodeName", "containers"}
    assert [entry["name"] for entry in kept["spec"]["containers"][0]["env"]] == [names.ENV_VISIBLE_DEVICES]
    assert "managedFields" not in kept["metadata"]
    assert kept["metadata"]["annotations"] == binding
    assert view_of(kept) == view_of(pod)


def test_of_a_node_what_changes_all_the_time_is_dropped() -> None:
    node = make_node(make_inventory(15))
    node["status"] |= {"conditions": [{"lastHeartbeatTime": "x"}], "images": [{}]}
    node["metadata"]["annotations"]["other"] = "x"
    watched = Watched(FakeKube(), Scope(), SystemClock())
    sink = watched.reflectors["nodes"].sink
    sink.upsert(sink.read(node))
    [kept] = watched.objects(Scope()).nodes
    assert kept["status"].keys() == {"addresses", "allocatable"}
    assert kept["metadata"]["annotations"].keys() == {names.ANNOTATION_INVENTORY}


@pytest.mark.parametrize(
    ("reason", "kept"), [("GpuShareNoRoom", True), ("Preempted", True), ("Pulled", False), ("FailedScheduling", False)]
)
def test_of_events_those_about_gpus_are_kept_short_whatever_their_author_wrote(reason: str, kept: bool) -> None:
    event = clusters.event(clusters.running("p", "GPU-x", 3, on="n"), reason, LARGE)
    event |= {"type": LARGE, "note": LARGE, "managedFields": []}
    event["involvedObject"] |= {"name": LARGE, "fieldPath": LARGE}
    event["metadata"] |= {"uid": "u", "annotations": {"a": LARGE}}
    found = reduced_event(event)
    assert (found is not None) is kept
    if found is not None:
        assert size(found) < SMALL
        assert len(found["message"]) == 1024
        assert found["involvedObject"]["namespace"] == "research"
        assert views.of_event(found).text == f"Event {reason}: {LARGE[:1024]}"
        assert size(reduced_event(event | {"reason": f"GpuShare{LARGE}"})) < SMALL


def test_an_event_has_the_time_that_it_has() -> None:
    stamps = {
        "lastTimestamp": None,
        "eventTime": "2026-11-01T11:30:00.123456Z",
        "firstTimestamp": "2020-01-01T00:00:00Z",
    }
    about = {"namespace": "a", "name": "b"}
    found = views.of_event({"involvedObject": about, "reason": "Preempted", "message": "", **stamps})
    assert (found.at, found.subject, found.warning) == ("2026-11-01T11:30:00Z", "a/b", False)


def test_a_pod_that_asks_for_no_gpu_holds_none_whatever_its_annotations_claim() -> None:
    """No one guards those; such amounts also kept the page from being written."""
    claims = [bound(name, make_grant(0, gib=2**52)) for name in "ab"]
    for pod in claims:
        pod["spec"]["containers"][0].pop("resources")
    assert isinstance(reduced_pod(claims[0]), NonGpuPod)
    assert reduced_pod(make_pod(make_container())) is None
    assert view_of(*claims).cards[0].granted_mib == 0


def waiting() -> Json:
    pod = clusters.waiting("large", 3)
    meta, spec = pod["metadata"], pod["spec"]
    meta.setdefault("annotations", {}).update({"kubectl.kubernetes.io/last-applied-configuration": LARGE})
    meta["managedFields"] = [{"fieldsV1": LARGE}]
    spec["volumes"] = [{"name": "v", "hostPath": {"path": LARGE}}]
    spec["containers"][0] |= {"command": [LARGE], "args": [LARGE], "image": LARGE}
    spec["containers"][0].setdefault("env", []).append({"name": "LARGE", "value": LARGE})
    spec["tolerations"] = [{"key": "k", "operator": "Exists"}]
    return pod


def test_a_pod_that_waits_keeps_what_decides_about_its_place() -> None:
    pod = waiting()
    asks = {names.ANNOTATION_MODEL: "A100", names.ANNOTATION_LIMIT: names.ENFORCED}
    pod["metadata"]["annotations"] |= asks
    kept = reduced_pod(pod)
    assert isinstance(kept, dict)
    assert size(kept) < SMALL
    assert kept["metadata"]["annotations"].items() >= asks.items()
    assert kept["spec"]["tolerations"] == pod["spec"]["tolerations"]
    assert kept["spec"]["containers"][0]["resources"] == pod["spec"]["containers"][0]["resources"]


def test_bindings_of_other_systems_are_kept() -> None:
    bindings = {names.ACK_ALLOCATION: "{}", names.ALIYUN_IDX: "0", f"{names.PREFIX_NANO_CONTAINER}main": "0"}
    assert all(map(interop.is_annotation, bindings))
    assert reading.own_annotations({**bindings, "gpushare.dev.evil.example/x": LARGE}) == bindings


PLAIN = Look()
ESCAPES = re.compile(r"\x1b\[[0-9]+m")


def large(*pods: Json, **fields: Any) -> NodeView:
    """A node of two GPUs of 16 GiB."""
    return view_of(*pods, gib=(16, 16), **fields)


def waits(namespace: str, name: str, reason: str, others: int = 0) -> Waiting:
    told = {"asks": "", "headline": "", "reason": reason, "since": ""}
    return Waiting(namespace=namespace, name=name, others=others, good=False, **told)


def written(lines: Iterable[Line], look: Look = PLAIN) -> list[str]:
    return console.printed(lines, look).splitlines()


def drawn(view: NodeView, look: Look = PLAIN) -> list[str]:
    return written(bars.of_nodes([view], bars.MARKS[look.unicode]), look)


def page(shown: Picture, look: Look = PLAIN, *, nodes: Sequence[str] = ()) -> list[str]:
    return written(top.lines(shown, nodes, look), look)


def test_a_bar_is_as_full_as_its_gpu_and_neighbours_differ() -> None:
    view = large(bound("a", make_grant(0, gib=4)), bound("b", make_grant(0, gib=8)), bound("c", make_grant(1, gib=16)))
    assert drawn(view) == [
        "node-a  28/32 GiB  Tesla T4  192.168.0.71",
        "  0    [######============......]  12/16 GiB                 advisory   2 pods",
        "  1    [########################]  16/16 GiB                 advisory   1 pod",
    ]
    assert "[██████░░░░░░░░░░░░░░░░░░]" in drawn(large(bound("a", make_grant(0, gib=4))), Look(unicode=True))[1]


def test_an_oversubscribed_gpu_says_by_how_much() -> None:
    view = large(bound("a", make_grant(0, gib=10)), bound("b", make_grant(0, gib=10)), extra_mib=8 * 1024)
    assert drawn(view)[1:3] == [
        "  0    [##########==========....]  20/16 GiB                 advisory   2 pods",
        "        oversubscribed: up to 24 GiB may be granted; 125 % of its memory is",
    ]


@pytest.mark.parametrize("pods", [1, 24, 60])
def test_a_bar_is_never_longer_than_its_place(pods: int) -> None:
    view = large(*(bound(f"p{i}", make_grant(0, gib=1)) for i in range(pods)))
    assert [line.index("]") for line in drawn(view)[1:]] == [32, 32]


def test_a_gpu_that_takes_nothing_new_says_why() -> None:
    view = large(health=GpuHealth.UNHEALTHY, reason="Xid 79")
    assert drawn(view)[2] == "        unhealthy: Xid 79"
    assert page(picture(view))[0].endswith("  2 out of use")


def test_of_a_node_that_may_not_be_read_nothing_is_made_up() -> None:
    view = views.of_unread_node(NodeName("node-a"), [bound("a", make_grant("GPU-x", gib=3))], make_inventory().unit)
    assert view is not None
    assert drawn(view) == ["node-a  3/? GiB  model not known", f"  0    [{'#' * 24}]  3/? GiB{' ' * 30}1 pod"]
    assert drawn(replace(large(), address="unknown"))[0] == "node-a  0/32 GiB  Tesla T4"


EVIL = "\x1b[2J\x1b]0;x\x07\u202e\n"


@pytest.mark.parametrize("look", [PLAIN, Look(colour=True, unicode=True)])
def test_nothing_that_a_tenant_writes_reaches_the_terminal_as_a_command(look: Look) -> None:
    card = replace(large(bound("a", make_grant(0, gib=4))).cards[0], why=EVIL, model=EVIL)
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
    card = replace(large(bound("a", make_grant(0, gib=4))).cards[0], why=words)
    [head, _, why] = drawn(NodeView(name=words, address=words, known=True, cards=(card,)), Look(colour=True, width=200))
    assert ESCAPES.sub("", head).startswith(f"{words}  ")
    assert why == f"\x1b[31m        {words}\x1b[0m"


def picture(*nodes: NodeView, overview: Overview | None = None, waiting: tuple[Waiting, ...] = ()) -> Picture:
    shown = overview or Overview(server="", complete=True, scope="", totals=views.totals(nodes, len(waiting)))
    return Picture(version=1, nodes={each.name: each for each in nodes}, overview=shown, waiting=waiting)


def test_of_a_node_that_is_named_the_pods_are_listed_below_their_gpus() -> None:
    use = NodeUse(uses={("default", "a", "main", "GPU-0"): Use(1536)})
    view = large(bound("a", make_grant(0, gib=4)), bound("b", make_grant(0, gib=8)), use=use, limit=Limit.CGROUP)
    both = picture(view, replace(large(), name="other"))
    assert page(both, nodes=["node-a"])[1:-1] == [
        "node-a  12/32 GiB  Tesla T4  192.168.0.71",
        "  0    [######============......]  12/16 GiB      used 1.5   enforced   2 pods",
        "        4 GiB     used 1.5   default/a",
        "        8 GiB                default/b",
        "  1    [........................]  0/16 GiB                  enforced",
    ]
    assert "default/" not in " ".join(page(both))
    unsure = page(replace(both, overview=replace(both.overview, complete=False)))
    assert ("?]" in unsure[2], "." in unsure[2].partition("]")[0], "not shown" in unsure[-1]) == (True, False, True)


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


def test_inspect_adds_bars_and_changes_nothing_else(cluster: Any, run: Run) -> None:
    (_, before, _), (_, after, _) = run("inspect"), run("inspect", "--bars")
    assert after.startswith(before)
    assert "  0    [" in after.removeprefix(before)


def test_top_prints_once_and_plainly_where_it_is_no_terminal(
    cluster: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "_LOOK_S", 0.0)
    code, out, err = run("top")
    assert (code, out.splitlines()[0], "\x1b" in out) == (0, "1 GPU on 1 node  4/16 GiB  1 pod", False)
    assert err == "note: what is used on node node-a is not known: there is no gpushare-device-plugin on it\n"
    cluster.vanish("/api/v1/nodes/node-a")
    assert run("top") == (1, "", "no GPU of a shared node may be seen; is the device plugin running?\n")


def test_top_that_prints_once_ends_while_the_server_is_away(
    cluster: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has said what may be read, and then nothing more."""
    seen = Counter[str]()

    def again(call: Call) -> bool:
        seen[call.path] += 1
        return seen[call.path] > 1

    cluster.fail_next(again, kube.UnreachableError("connection refused"), times=10**6)
    monkeypatch.setattr(top, "_ONCE_S", 0.0)
    assert run("top") == (1, "", "error: the API server has not answered all questions for 0 s\n")
