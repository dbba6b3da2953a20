"""Hands GPUs over: answers Allocate, writes before each start what the runtime injects, removes what no pod needs."""

import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from deviceplugin.cdi import VendorSpec
from deviceplugin.handover import pick, strategy
from deviceplugin.handover.choice import HandOverChoice
from deviceplugin.handover.pick import HandOverError, Recipient
from deviceplugin.handover.spec_files import SpecFile, SpecFileError, SpecFiles
from deviceplugin.resources import Resource
from deviceplugin.source import RawGpu
from gpushare import names
from gpushare.identity import GpuUuid, PodUid
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import pods as wire
from gpushare.wire.pods import Pod

_LOG: Final = logging.getLogger(__name__)
_EVERY_S: Final = 10.0
_YOUNG_S: Final = 60.0  # A start may know its pod from the API server itself, before the watch has told of it
Pods = Callable[[], Sequence[Pod] | None]  # those of this node that ask for GPUs; None while that is not known


@dataclass(kw_only=True)
class DeviceHandOver:
    """Safe for use by many threads."""

    choice: Callable[[], HandOverChoice]
    gpus: Callable[[], Mapping[GpuUuid, RawGpu]]  # as they were read last
    files: SpecFiles
    specs: Callable[[], Sequence[VendorSpec]]  # of the node, but for this plugin's own, those that count most first
    _problems: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    def answer(self, resource: Resource, ids: Sequence[str]) -> Any:
        return strategy.respond(self.choice(), strategy.make(ids, secrets.token_hex(8)), resource.prefix)

    def prepare(self, ids: frozenset[str], recipients: Sequence[Recipient]) -> None:
        """Make the devices that Allocate has named for these IDs, and unmake earlier ones. May raise HandOverError."""
        is_needed = any(recipient.names for recipient in recipients)
        chosen, known, specs = self.choice(), self.gpus(), self.specs() if is_needed else ()
        wanted = {
            SpecFile(recipient.uid, name): pick.edits_of(recipient, known, chosen, specs)
            for recipient in recipients
            for name in recipient.names
        }
        # A runtime that finds a device twice injects none, or the other one.
        for spec in self.remove_forged(specs):
            if not spec.devices.keys().isdisjoint({file.device for file in wanted}):
                raise HandOverError(f"{spec.path} makes the same CDI device; remove that file")
        try:
            for file in set(self._of(ids)) - wanted.keys():
                self.files.remove(file)
            for file, edits in wanted.items():
                self.files.write(file, edits)
        except SpecFileError as error:
            raise HandOverError(f"{error}; the kubelet will try again") from error

    def withdraw(self, ids: frozenset[str], uid: PodUid | None = None) -> None:
        """Unmake the devices of these IDs, also what others made of them, and all of a pod: a container does not start.

        It may hold devices of other resources, too. A kubelet creates the containers of a pod one after the other, and
        asks before each, so the others no longer need theirs.
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

    def _removed(self, spec: VendorSpec) -> bool:
        try:
            spec.path.unlink(missing_ok=True)
        except OSError as error:
            about = {"path": str(spec.path), "error": str(error)}
            self._problems.say("forged spec not removed", spec.path, level=logging.ERROR, **about)
            return False
        self._problems.clear(spec.path)
        logs.event(_LOG, "forged spec removed", level=logging.WARNING, path=str(spec.path))
        return True

    def _of(self, ids: frozenset[str]) -> Sequence[SpecFile]:
        stem = strategy.stem(ids)
        return [file for file in self.files.found() if file.device.startswith(stem)]


@dataclass(kw_only=True)
class SpecSweeper:
    devices: DeviceHandOver
    pods: Pods
    clock: Clock
    _needed: set[str] = field(init=False, default_factory=set)  # UIDs of the pods that had GPUs at the last look

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.sweep()
            self.clock.wait(stop, _EVERY_S)

    def sweep(self) -> None:
        """Remove specs of pods that are gone or have ended, what others wrote of this plugin's kind, and remains."""
        self.devices.remove_forged()
        before = self.clock.now().timestamp() - _YOUNG_S
        files = self.devices.files
        files.remove_unfinished(before)
        pods = self.pods()
        if pods is None:
            return
        needed: set[str] = {wire.ref(pod).uid for pod in pods if wire.holds_gpus(pod)}
        gone, self._needed = self._needed - needed, needed
        for file in files.found():
            if file.uid in gone or (file.uid not in needed and files.written_at(file) < before):
                with suppress(SpecFileError):  # tried again
                    files.remove(file)
