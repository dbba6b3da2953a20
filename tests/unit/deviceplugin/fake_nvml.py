# ruff: noqa: N802, N815, N818 - the names are NVIDIA's
"""The few functions of the NVML binding that the plugin calls, over GPUs that a test describes."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace


class NVMLError(Exception):
    pass


class NVMLErrorNotSupported(NVMLError):
    pass


class NVMLErrorFunctionNotFound(NVMLError):
    pass


class NVMLErrorTimeout(NVMLError):
    pass


class NVMLErrorGpuIsLost(NVMLError):
    pass


class NVMLErrorResetRequired(NVMLError):
    pass


class NVMLErrorLibRmVersionMismatch(NVMLError):
    pass


class NVMLErrorDriverNotLoaded(NVMLError):
    pass


class NVMLErrorArgumentVersionMismatch(NVMLError):
    pass


class NVMLErrorNotFound(NVMLError):
    pass


@dataclass(kw_only=True)
class Card:
    uuid: str | bytes
    memory: int = 15109 * 1024 * 1024
    name: str | bytes = "Tesla T4"
    bus: str | bytes = "00000000:3B:00.0"
    mig: int | None = None
    events: bool = True
    lost: bool = False


@dataclass
class FakeNvml:
    """Stands where the module `pynvml` stands."""

    cards: list[Card] = field(default_factory=list)
    broken: str = ""
    """Why no call works."""
    event_sets: bool = True
    pending: deque[SimpleNamespace | NVMLError] = field(default_factory=deque)
    open: int = 0
    sets: int = 0
    on_wait: Callable[[int], object] = lambda _milliseconds: None

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLErrorNotSupported
    NVMLError_FunctionNotFound = NVMLErrorFunctionNotFound
    NVMLError_Timeout = NVMLErrorTimeout
    NVMLError_GpuIsLost = NVMLErrorGpuIsLost
    NVMLError_ResetRequired = NVMLErrorResetRequired
    NVMLError_LibRmVersionMismatch = NVMLErrorLibRmVersionMismatch
    NVMLError_DriverNotLoaded = NVMLErrorDriverNotLoaded
    NVMLError_ArgumentVersionMismatch = NVMLErrorArgumentVersionMismatch
    NVMLError_NotFound = NVMLErrorNotFound
    nvmlMemory_v2 = 0x02000028
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_SUCCESS = 0
    nvmlEventTypeXidCriticalError = 8
    nvmlEventTypeDoubleBitEccError = 2

    def happen(self, card: Card, *, kind: int = 8, data: int = 0) -> None:
        self.pending.append(SimpleNamespace(device=card, eventType=kind, eventData=data, gpuInstanceId=0xFFFFFFFF))

    def nvmlInit(self) -> None:
        self._work()
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1
        self._work()

    def nvmlEventSetCreate(self) -> str:
        if not self.event_sets:
            raise NVMLErrorNotSupported("Not Supported")
        self.sets += 1
        return "events"

    def nvmlEventSetFree(self, events: str) -> None:
        self.sets -= 1
        self._work()

    def nvmlDeviceGetCount(self) -> int:
        self._work()
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        if self.cards[index].lost:
            raise NVMLErrorGpuIsLost("GPU is lost")
        return self.cards[index]

    def nvmlDeviceGetUUID(self, card: Card) -> str | bytes:
        return card.uuid

    def nvmlDeviceGetName(self, card: Card) -> str | bytes:
        return card.name

    def nvmlDeviceGetMemoryInfo(self, card: Card, version: int = 0) -> SimpleNamespace:
        return SimpleNamespace(total=card.memory, reserved=0)

    def nvmlDeviceGetMinorNumber(self, card: Card) -> int:
        return self.cards.index(card)

    def nvmlDeviceGetFieldValues(self, card: Card, fields: list[int]) -> list[SimpleNamespace]:
        raise NVMLErrorNotSupported("Not Supported")

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:
        return 0

    def nvmlDeviceGetPciInfo(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(busId=card.bus)

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:
        if card.mig is None:
            raise NVMLErrorNotSupported("Not Supported")
        return [card.mig, card.mig]

    def nvmlDeviceGetSupportedEventTypes(self, card: Card) -> int:
        if not card.events:
            raise NVMLErrorNotSupported("Not Supported")
        return 0xFF

    def nvmlDeviceRegisterEvents(self, card: Card, kinds: int, events: str) -> None:
        assert kinds == 10

    def nvmlEventSetWait_v2(self, events: str, milliseconds: int) -> SimpleNamespace:
        self.on_wait(milliseconds)
        if not self.pending:
            raise NVMLErrorTimeout("Timeout")
        event = self.pending.popleft()
        if isinstance(event, NVMLError):
            raise event
        return event

    def _work(self) -> None:
        if self.broken:
            raise NVMLError(self.broken)
