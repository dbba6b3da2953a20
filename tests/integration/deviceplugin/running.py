"""The plugin's kubelet side in a thread, with what it needs around it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deviceplugin import advertise
from deviceplugin.board import Board
from deviceplugin.decide import Accept, Decision
from deviceplugin.kubelet import KubeletLink
from gpushare.model.gpu import NodeInventory
from gpushare.runtime.clock import SystemClock
from tests.builders import make_inventory


class OpenGate:
    """Lets everything start."""

    def check(self, device_ids: list[str]) -> Decision:
        return Accept(())


def board_with(inventory: NodeInventory | None = None) -> Board:
    board = Board()
    show(board, inventory or make_inventory(4, 4))
    return board


def show(board: Board, inventory: NodeInventory) -> None:
    board.post(inventory, advertise.devices(inventory))


@contextmanager
def running(**fields: Any) -> Iterator[KubeletLink]:
    """Args: fields: of the KubeletLink, beside sensible defaults."""
    given: dict[str, Any] = {"board": board_with(), "gate": OpenGate(), "clock": SystemClock()} | fields
    link = KubeletLink(**given)
    stop = threading.Event()
    thread = threading.Thread(target=link.run, args=(stop,), name="link")
    thread.start()
    try:
        yield link
    finally:
        stop.set()
        thread.join(10.0)
        assert not thread.is_alive()
