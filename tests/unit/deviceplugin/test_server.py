"""Answers to a kubelet's calls, without a socket."""

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from deviceplugin import resources
from deviceplugin.api import deviceplugin_pb2 as api
from deviceplugin.decide import Accept, Decision, Reason, Refuse
from deviceplugin.resources import Resource
from deviceplugin.server import Servicer
from testing.deviceplugin.running import feed_with, no_devices


class Aborted(Exception):  # noqa: N818 - no error of the code under test
    pass


class Context:
    """The part of a gRPC context that is used."""

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Aborted(code, details)


class FixedStartCheck:
    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.asked: list[tuple[str, list[str]]] = []
        self.open = threading.Event()
        self.open.set()

    def check(self, resource: Resource, device_ids: Sequence[str]) -> Decision:
        self.asked.append((resource.name, list(device_ids)))
        self.open.wait()
        return self.decision


def servicer(start_check: FixedStartCheck, resource: Resource = resources.MEMORY) -> Servicer:
    return Servicer(resource=resource, feed=feed_with(), start_check=start_check.check, answer=no_devices)


def pre_start(asked: Servicer, *ids: str) -> Any:
    return asked.pre_start(api.PreStartContainerRequest(devices_ids=ids), Context())


FAILED, LATER = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE


def test_a_refusal_becomes_a_status_with_a_message_that_a_header_holds() -> None:
    passing = {Reason.API_SILENT, Reason.KUBELET_SILENT, Reason.LATE}
    for reason in Reason:
        with pytest.raises(Aborted) as caught:
            pre_start(servicer(FixedStartCheck(Refuse(reason, "x" * 100_000))))
        assert caught.value.args == (LATER if reason in passing else FAILED, "x" * 2048), reason


def test_too_many_starts_at_once_are_put_off() -> None:
    start_check = FixedStartCheck(Accept(()))
    start_check.open.clear()
    one = servicer(start_check, dataclasses.replace(resources.WHOLE, starts=1))
    first = threading.Thread(target=pre_start, args=(one, "a"))
    first.start()
    while not start_check.asked:
        start_check.open.wait(0.001)
    with pytest.raises(Aborted) as caught:
        pre_start(one, "b")
    start_check.open.set()
    first.join()
    assert caught.value.args == (LATER, "too many containers start at once; the kubelet will try again")
    assert pre_start(one, "c") == api.PreStartContainerResponse()
    assert start_check.asked == [("nvidia.com/gpu", ["a"]), ("nvidia.com/gpu", ["c"])]
