"""One connection of the server, and what its thread waits for."""

import contextlib
import socket
from dataclasses import dataclass
from enum import Enum

from gpushare.runtime import serving
from gpushare.runtime.arrival import Arrival


class Waits(Enum):
    """What a connection's thread waits for."""

    PEER = "the peer has to send"
    ROOM = "others have to give back room"
    END = "the peer has to leave"
    NOTHING = "it works, or waits for its turn"


@dataclass(eq=False, slots=True)
class Conversation:
    """One connection. Its thread writes, the main loop reads, and says only `gives_up`."""

    sock: socket.socket
    arrival: Arrival
    since: float
    """When it was opened, last asked, or left."""
    waits: Waits = Waits.PEER
    kept: bool = False
    """It has been answered, and may ask again."""
    gives_up: bool = False
    """Others need its room, or there was none for it."""
    wide: bool = False
    """The kernel may hold much of it."""

    def fit(self) -> None:
        """Let the kernel hold much of it for as long as it holds room."""
        if bool(self.arrival.held) is not self.wide:
            self.wide = not self.wide
            (serving.widen if self.wide else serving.narrow)(self.sock)

    def end(self) -> None:
        """Whatever its thread waits for is over."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
