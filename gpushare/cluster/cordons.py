"""Which GPUs an administrator keeps new pods away from: the entries of a node's annotation. Pure.

A defragmentation cordons GPUs for the time being. Another annotation says which entries are its own, so that it takes
back no cordon of an administrator, who may cordon the same GPU meanwhile.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpushare import names
from gpushare.errors import SettingsError
from gpushare.identity import GpuUuid
from gpushare.model.gpu import Gpu, NodeInventory


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:  # what a node's annotations say
    gpus: str = ""  # all that take no new pods
    held: str = ""  # those of them that a defragmentation keeps free for the time being

    def closed(self, inventory: NodeInventory, name: str) -> "Cordon":
        """An administrator keeps new pods away, longer than a defragmentation. Raises SettingsError: no such GPU."""
        # A GPU is written by its UUID, so that the one that replaces it is free at once; a partitioned one by its
        # number, because its instances get other UUIDs whenever they are made.
        gpus, known = meant(inventory, name), entries(self.gpus)
        held = _joined(set(entries(self.held)) - {str(gpu.uuid) for gpu in gpus})
        if all(names_of(gpu) & set(known) for gpu in gpus):
            return Cordon(gpus=self.gpus, held=held)
        partitioned = any(gpu.mig and name == str(gpu.mig.gpu) for gpu in gpus)
        return Cordon(gpus=",".join([*known, name if partitioned else str(gpus[0].uuid)]), held=held)

    def opened(self, inventory: NodeInventory | None, name: str) -> "Cordon":
        """The GPUs, also of a name that is gone, take pods again, also if a defragmentation closed them."""
        # Raises SettingsError: nothing names the GPU, or an entry names others as well.
        known, there = entries(self.gpus), inventory.gpus if inventory is not None else ()
        gpus = [gpu for gpu in there if name in names_of(gpu)]
        going = {entry for entry in known if entry == name or any(entry in names_of(gpu) for gpu in gpus)}
        if not going:
            raise SettingsError(f"GPU {name!r} is not cordoned; {names.ANNOTATION_CORDON} is {self.gpus!r}")
        for entry in sorted(going):
            others = ", ".join(gpu.label for gpu in there if entry in names_of(gpu) and gpu not in gpus)
            if others:
                raise SettingsError(f"GPU {name!r} is cordoned together with {others}, by {entry!r}; uncordon that")
        left = [entry for entry in known if entry not in going]
        return Cordon(gpus=",".join(left), held=_joined(set(entries(self.held)) & set(left)))

    def holding(self, gpus: Iterable[GpuUuid]) -> "Cordon":
        """A defragmentation keeps these free, which were open."""
        return Cordon(gpus=",".join([*entries(self.gpus), *gpus]), held=_joined({*entries(self.held), *gpus}))

    def released(self, gpus: Iterable[GpuUuid]) -> "Cordon":
        """It has ended: those take pods again that no one else has cordoned meanwhile."""
        own = set(entries(self.held)) & set(gpus)
        rest = [entry for entry in entries(self.gpus) if entry not in own]
        return Cordon(gpus=",".join(rest), held=_joined(set(entries(self.held)) - own))

    def holds(self, gpus: Iterable[GpuUuid]) -> bool:
        """Whether all of these are closed by a defragmentation alone."""
        return set(gpus) <= set(entries(self.held)) & set(entries(self.gpus))


def entries(text: str) -> list[str]:
    return [entry for part in text.split(",") if (entry := part.strip())]


def numbers(gpu: Gpu) -> frozenset[int]:
    """By which numbers a GPU is meant: a MIG instance by that of its GPU too."""
    return frozenset({gpu.index, *((gpu.mig.gpu,) if gpu.mig else ())})


def names_of(gpu: Gpu) -> set[str]:
    """Every entry that means a GPU."""
    return {str(gpu.uuid), gpu.label, *map(str, numbers(gpu))}


def meant(inventory: NodeInventory, name: str) -> tuple[Gpu, ...]:
    """GPUs that a name stands for: several for the number of a partitioned GPU. Raises SettingsError: there is none."""
    found = tuple(gpu for gpu in inventory.gpus if name in names_of(gpu))
    if not found:
        there = ", ".join(f"{gpu.label} ({gpu.uuid})" for gpu in inventory.gpus) or "none"
        raise SettingsError(f"node {inventory.node} has no GPU {name!r}; its GPUs: {there}")
    return found


def _joined(entries: Iterable[str]) -> str:
    return ",".join(sorted(entries))
