"""The plugin's kubelet side in a thread, with what it needs around it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deviceplugin import advertise, resources
from deviceplugin.board import Board
from deviceplugin.decision import Accept, Decision
from deviceplugin.kubelet import KubeletLink
from deviceplugin.resources import Resource
from gpushare.model.gpu import NodeInventory
from gpushare.runtime.clock import SystemClock
from testing.builders import make_inventory

EVERYTHING = resources.offered(percent=True, whole_gpus=True)


class OpenGate:
    """Lets everything start."""

    def check(self, resource: Resource, device_ids: list[str]) -> Decision:
        return Accept(())


def board_with(inventory: NodeInventory | None = None) -> Board:
    board = Board()
    show(board, inventory or make_inventory(4, 4))
    return board


def show(board: Board, inventory: NodeInventory) -> None:
    board.post(inventory, advertise.devices(inventory, EVERYTHING))


@contextmanager
def running(**fields: Any) -> Iterator[KubeletLink]:
    """Args: fields: of the KubeletLink, beside sensible defaults."""
    with running_all(fields.pop("resource", resources.MEMORY), **fields) as (link,):
        yield link


@contextmanager
def running_all(*offered: Resource, **fields: Any) -> Iterator[list[KubeletLink]]:
    """A link for each resource. Args: fields: of all of them, beside sensible defaults."""
    given: dict[str, Any] = {"board": board_with(), "gate": OpenGate(), "clock": SystemClock()} | fields
    links = [KubeletLink(resource=resource, **given) for resource in offered]
    stop = threading.Event()
    threads = [threading.Thread(target=link.run, args=(stop,), name=f"link {link.resource.name}") for link in links]
    for thread in threads:
        thread.start()
    try:
        yield links
    finally:
        stop.set()
        for thread in threads:
            thread.join(10.0)
            assert not thread.is_alive()
