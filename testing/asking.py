"""Questions that tests ask any API server."""

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from gpushare.kube import api as kube
from gpushare.kube.client import RestClient

Json = dict[str, Any]
T = TypeVar("T")


class _Asker(Protocol):
    @property
    def api(self) -> RestClient: ...


class Asking:
    """What has a client `api` can be asked for objects."""

    __slots__ = ()

    def pods(self: _Asker, namespace: str, selector: str = "") -> list[Json]:
        """All pods of a namespace."""
        params = {"labelSelector": selector} if selector else {}
        listed: list[Json] = self.api.get(f"/api/v1/namespaces/{namespace}/pods", params, timeout_s=30)["items"]
        return listed

    def pod(self: _Asker, namespace: str, name: str) -> Json:
        """One pod."""
        return self.api.get(kube.pod_path(namespace, name), timeout_s=10)

    def exists(self: _Asker, path: str) -> bool:
        """Whether there is such an object."""
        try:
            self.api.get(path, timeout_s=30)
        except kube.NotFoundError:
            return False
        return True

    def events(self: _Asker, namespace: str, pod: str = "") -> list[str]:
        """`reason: message` of a namespace's events, oldest first."""
        items = self.api.get(f"/api/v1/namespaces/{namespace}/events", timeout_s=30)["items"]
        chosen = [event for event in items if not pod or event["involvedObject"].get("name") == pod]
        chosen.sort(key=lambda event: event["metadata"]["creationTimestamp"])
        return [f"{event.get('reason')}: {event.get('message')}" for event in chosen]


def eventually(
    what: str,
    condition: Callable[[], T],
    timeout_s: float,
    *,
    poll_s: float = 0.1,
    check: Callable[[], object] | None = None,
) -> T:
    """The condition's first true value; an AssertionError with its last value when time is up.

    Args:
        what: is to come true.
        condition: asked again and again.
        timeout_s: how long.
        poll_s: from one question to the next.
        check: called when time is up; it may raise an error that says more.
    """
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > end:
            if check:
                check()
            raise AssertionError(f"{what}: still {value!r} after {timeout_s} s")
        time.sleep(poll_s)
    return value
