"""A driver that hangs holds up neither a start nor the end of the process, and few threads."""

import threading

from deviceplugin.nvml.driver import Deadline


def test_one_call_is_made_after_the_other() -> None:
    within, begun, go, log = Deadline(60.0), threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        go.wait()
        log.append("first")

    def follow() -> None:
        go.set()
        within(lambda: log.append("second"))

    before = threading.Thread(target=within, args=(first,))
    after = threading.Thread(target=follow)
    before.start()
    begun.wait()
    after.start()
    for thread in (before, after):
        thread.join()
    assert log == ["first", "second"]
