"""Snapshots and those who wait for them."""

import threading

from deviceplugin.inventory import InventoryFeed
from testing.builders import make_inventory
from testing.deviceplugin.running import feed_with, show


def test_a_newer_snapshot_is_given_at_once() -> None:
    feed = feed_with()
    found = feed.newer(0, over=lambda: False)
    assert found is feed.latest
    assert found is not None
    assert found.version == 1


def test_who_has_seen_the_latest_waits_no_longer_than_told() -> None:
    assert feed_with().newer(1, over=lambda: False, seconds=0.01) is None
    assert InventoryFeed().newer(0, over=lambda: False, seconds=0.01) is None


def test_who_wants_to_wait_no_longer_gets_nothing() -> None:
    assert feed_with().newer(0, over=lambda: True) is None


def test_a_waiter_gets_what_is_posted_later() -> None:
    feed, got = feed_with(), list[int]()

    def wait() -> None:
        found = feed.newer(1, over=lambda: False)
        got.append(found.version if found else 0)

    thread = threading.Thread(target=wait)
    thread.start()
    show(feed, make_inventory(1))
    thread.join()
    assert got == [2]


def test_waking_lets_a_waiter_notice_that_it_is_over() -> None:
    feed, over, got = feed_with(), threading.Event(), list[object]()
    thread = threading.Thread(target=lambda: got.append(feed.newer(1, over=over.is_set)))
    thread.start()
    over.set()
    feed.wake()
    thread.join()
    assert got == [None]
