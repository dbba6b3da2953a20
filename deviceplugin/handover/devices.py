"""Hands GPUs over: answers Allocate, and writes before each start what the container runtime then injects."""

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deviceplugin.handover import grant_edits, share_name
from deviceplugin.handover.choice import Choice
from deviceplugin.handover.grant_edits import HandOverError, Recipient
from deviceplugin.handover.spec_files import SpecFile, SpecFileError, SpecFiles
from deviceplugin.handover.strategy import STRATEGIES, Answer
from deviceplugin.handover.vendor_spec import VendorSpec
from deviceplugin.resources import Resource
from deviceplugin.source import RawGpu
from gpushare import names
from gpushare.identity import GpuUuid, PodUid
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)


@dataclass(kw_only=True)
class DeviceHandOver:
    """Keeps no state but the files, and what it has logged. Safe for use by many threads."""

    choice: Callable[[], Choice]
    gpus: Callable[[], Mapping[GpuUuid, RawGpu]]
    """As they were read last."""
    files: SpecFiles
    specs: Callable[[], Sequence[VendorSpec]]
    """Of the node, but for this plugin's own, those that count most first."""
    _said: set[Path] = field(init=False, default_factory=set)
    """Of which it was logged that they cannot be removed."""

    def answer(self, resource: Resource, ids: Sequence[str]) -> Answer:
        """What Allocate says."""
        chosen = self.choice()
        return STRATEGIES[chosen.way](chosen, share_name.make(ids, secrets.token_hex(8)), resource.prefix)

    def prepare(self, ids: frozenset[str], recipients: Sequence[Recipient]) -> None:
        """Make the devices that Allocate has named for these IDs, and unmake all earlier ones.

        Raises:
            HandOverError: that cannot be done; what was made before stays until `withdraw`.
        """
        is_needed = any(recipient.names for recipient in recipients)
        chosen, known, specs = self.choice(), self.gpus(), self.specs() if is_needed else ()
        wanted = {
            SpecFile(recipient.uid, name): grant_edits.of(recipient, known, chosen, specs)
            for recipient in recipients
            for name in recipient.names
        }
        self._keep_apart({file.name for file in wanted}, specs)
        try:
            for file in set(self._of(ids)) - wanted.keys():
                self.files.remove(file)
            for file, edits in wanted.items():
                self.files.write(file, edits)
        except SpecFileError as error:
            raise HandOverError(f"{error}; the kubelet will try again") from error

    def withdraw(self, ids: frozenset[str], uid: PodUid | None = None) -> None:
        """Unmake the devices of these IDs, also what others made of them, and all of a pod: a container does not start.

        It may hold devices of other resources, for which its start was accepted. The pod's other containers need theirs
        no more, because a kubelet creates the containers of a pod one after the other, and asks before each.
        """
        self.remove_forged()
        for file in {*self._of(ids), *(file for file in self.files.found() if file.uid == uid)}:
            try:
                self.files.remove(file)
            except SpecFileError as error:
                # No container runs with it: the kubelet asks again before it starts any.
                logs.event(_LOG, "spec not removed", level=logging.ERROR, error=str(error))

    def remove_forged(self, specs: Sequence[VendorSpec] | None = None) -> Sequence[VendorSpec]:
        """Remove the files of others that make devices of this plugin's kind. Returns those that cannot be removed."""
        found = self.specs() if specs is None else specs
        return [spec for spec in found if spec.kind == names.CDI_KIND and not self._removed(spec)]

    def _keep_apart(self, wanted: Set[str], specs: Sequence[VendorSpec]) -> None:
        """A runtime that finds a device twice injects none, or the other one."""
        for spec in self.remove_forged(specs):
            if not wanted.isdisjoint(spec.devices):
                raise HandOverError(f"{spec.path} makes the same CDI device; remove that file")

    def _removed(self, spec: VendorSpec) -> bool:
        try:
            spec.path.unlink(missing_ok=True)
        except OSError as error:
            if spec.path not in self._said:
                logs.event(_LOG, "forged spec not removed", level=logging.ERROR, path=str(spec.path), error=str(error))
            self._said.add(spec.path)
            return False
        self._said.discard(spec.path)
        logs.event(_LOG, "forged spec removed", level=logging.WARNING, path=str(spec.path))
        return True

    def _of(self, ids: frozenset[str]) -> Sequence[SpecFile]:
        stem = share_name.stem(ids)
        return [file for file in self.files.found() if file.name.startswith(stem)]
