"""`gpushare.dev/mode` on a node: by what an administrator wants each of its GPUs to be shared."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.model.gpu import Gpu, Mode
from gpushare.model.request import is_model

_MODES: Final = {mode.value: mode for mode in Mode}
_FIX: Final = (
    f"write {' or '.join(_MODES)} for all GPUs, then MODEL=MODE or UUID=MODE for some, with commas between them"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    other: Mode = Mode.DEVICE_PLUGIN  # of GPUs that are not named
    named: tuple[tuple[str, Mode], ...] = ()  # UUIDs and models; the first that a GPU has counts

    def has(self, mode: Mode) -> bool:
        return mode in {self.other, *(each for _, each in self.named)}

    def of(self, gpu: Gpu) -> Mode:
        return next((mode for name, mode in self.named if _names(name, gpu)), self.other)

    def unmatched(self, gpus: Sequence[Gpu]) -> Sequence[str]:
        """Names that are of none of these."""
        return [name for name, _ in self.named if not any(_names(name, gpu) for gpu in gpus)]


def _names(name: str, gpu: Gpu) -> bool:
    return name == gpu.uuid or is_model(gpu.model, name)


def parse(text: str) -> Wanted:
    """Read the annotation. Raises ValueError, which says what to write. Pure."""
    other, named = Mode.DEVICE_PLUGIN, []
    for number, part in enumerate(text.split(",") if text.strip() else ()):
        name, equals, word = (each.strip() for each in part.rpartition("="))
        if word not in _MODES or (equals and not name) or (number and not equals):
            raise ValueError(f"{part!r:.80} is not understood; {_FIX}")
        if equals:
            named.append((name, _MODES[word]))
        else:
            other = _MODES[word]
    return Wanted(other, tuple(named))
