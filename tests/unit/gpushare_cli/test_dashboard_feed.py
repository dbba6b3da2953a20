"""What a page is sent: all of the picture once, then what has changed."""

import json
import threading
from dataclasses import replace

from gpushare_cli.dashboard import server
from gpushare_cli.dashboard.feed import Feed
from gpushare_cli.dashboard.model import NodeView, Overview, Totals, Waiting

OVERVIEW = Overview(server="s", complete=True, scope="", totals=Totals())


def node(name: str, address: str = "a") -> NodeView:
    return NodeView(name=name, address=address, known=True, cards=())


def publish(feed: Feed, *nodes: NodeView, gone: str = "", overview: Overview = OVERVIEW) -> None:
    feed.publish({**{each.name: each for each in nodes}, **({gone: None} if gone else {})}, overview, (), ())


def since(feed: Feed, version: int) -> dict[str, object]:
    found: dict[str, object] = json.loads(b"".join(feed.since(version)[1]))
    return found


def names(sent: dict[str, object]) -> list[str]:
    nodes = sent["nodes"]
    assert isinstance(nodes, list)
    return [each["name"] for each in nodes]


def test_a_new_page_gets_everything() -> None:
    feed = Feed()
    publish(feed, node("a"), node("b"))
    sent = since(feed, 0)
    assert (sent["full"], names(sent)) == (True, ["a", "b"])
    assert sent.keys() == {"full", "nodes", "overview", "waiting", "happenings"}


def test_a_page_that_has_a_version_gets_what_is_new_since() -> None:
    feed = Feed()
    publish(feed, node("a"), node("b"))
    publish(feed, node("a"), node("b", "other"))
    sent = since(feed, 1)
    assert sent.keys() == {"full", "nodes"}
    assert (sent["full"], names(sent)) == (False, ["b"])


def test_what_has_not_changed_makes_no_version() -> None:
    feed = Feed()
    publish(feed, node("a"))
    publish(feed, node("a"))
    assert feed.wait(0, 0) == 1


def test_a_node_that_is_gone_is_told_to_pages_that_had_it() -> None:
    feed = Feed()
    publish(feed, node("a"))
    publish(feed, gone="a")
    assert since(feed, 1) == {"full": False, "nodes": [], "gone": ["a"]}
    assert names(since(feed, 0)) == []
    assert feed.picture is not None
    assert not feed.picture.nodes
    publish(feed, node("a"))
    assert names(since(feed, 2)) == ["a"]


def test_a_node_that_never_was_is_not_gone() -> None:
    feed = Feed()
    publish(feed, node("a"))
    publish(feed, gone="never")
    assert feed.wait(0, 0) == 1


def test_who_waits_is_told_of_the_next_version() -> None:
    feed = Feed()
    publish(feed, node("a"))
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(feed.wait(1, 300)))
    thread.start()
    publish(feed, node("b"))
    thread.join()
    assert found == [2]


def test_characters_that_hide_are_shown() -> None:
    feed = Feed()
    publish(feed, overview=replace(OVERVIEW, notes=("a\u202eb\u009bc\u00ad",)))
    sent = since(feed, 0)["overview"]
    assert isinstance(sent, dict)
    assert sent["notes"] == ["a\\u202eb\\u009bc\u00ad"]


def test_a_part_that_changes_alone_is_sent_alone() -> None:
    feed = Feed()
    publish(feed, node("a"))
    pod = Waiting(namespace="n", name="p", others=0, asks="", headline="", reason="", good=False, since="")
    feed.publish({}, OVERVIEW, (pod,), ())
    assert since(feed, 1).keys() == {"full", "nodes", "waiting"}


def test_numbers_that_only_a_forged_pod_has_do_not_end_the_picture() -> None:
    feed = Feed()
    totals = Totals(granted_mib=3 * 2**63)
    publish(feed, node("a"), overview=replace(OVERVIEW, totals=totals, notes=("\u202e\u00e9",)))
    sent = since(feed, 0)["overview"]
    assert isinstance(sent, dict)
    assert (sent["totals"]["granted_mib"], sent["notes"]) == (3 * 2**63, ["\\u202e\u00e9"])


def test_a_picture_is_in_memory_once_for_all_who_read_it() -> None:
    feed = Feed()
    publish(feed, *(node(str(number), "x" * 1000) for number in range(10)))
    one, other = ([id(piece) for piece in feed.since(0)[1] if len(piece) > 1000] for _ in range(2))
    assert len(one) == 10
    assert one == other


def test_a_large_picture_is_sent_in_parts_for_each_of_which_a_slow_network_has_the_whole_time() -> None:
    pieces = [b"x" * 30_000] * 10 + [b"y" * 200_000, b"z"]
    batches = list(server._batches(pieces))
    assert b"".join(batches) == b"".join(pieces)
    assert [len(batch) for batch in batches] == [90_000, 90_000, 90_000, 230_000, 1]
