"""Which claims are prepared on this node: in memory, and in a file that outlives the process and the machine's boot."""

import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from deviceplugin.dra import claims
from gpushare.errors import GpuShareError, WireError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime import logs
from gpushare.wire import claims as wire
from gpushare.wire.claims import API, Claim

_LOG: Final = logging.getLogger(__name__)
_GET_S: Final = 5.0
_LIST_S: Final = 10.0


class ClaimError(GpuShareError):
    """A claim cannot be prepared; the message is what the kubelet shows on the pod."""


@dataclass(kw_only=True)
class ClaimStore:
    """Safe for use by many threads; who changes it does so one at a time."""

    node: NodeName
    api: KubeApi
    checkpoint: Path
    prepared: Mapping[str, Claim] | None = field(init=False, default=None)  # by UID; None until that is known
    _loading: threading.Lock = field(init=False, default_factory=threading.Lock)
    _unsaved: bool = field(init=False, default=False)

    def load(self) -> None:
        """Read the checkpoint once. One that is missing or broken is made again of what is allocated on this node.

        Raises ClaimError: neither can be read.
        """
        if self.prepared is not None:
            return
        with self._loading:
            if self.prepared is None:
                self.prepared = {claim.uid: claim for claim in self._read()}
                self._unsaved = True

    def _read(self) -> Iterable[Claim]:
        try:
            return claims.decode(self.checkpoint.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, WireError) as error:
            is_new = isinstance(error, FileNotFoundError)
            level = logging.INFO if is_new else logging.ERROR
            logs.event(_LOG, "no checkpoint", level=level, path=str(self.checkpoint), error=str(error))
            try:
                return [replace(claim, assumed=True) for claim in self.allocated()]
            except kube.KubeError as problem:
                raise ClaimError(
                    f"{self.checkpoint} cannot be read ({error}), nor claims ({problem}); the kubelet will try again"
                ) from problem

    def allocated(self) -> Sequence[Claim]:
        """Claims that are allocated GPUs of this node. May raise KubeError."""

        def kept(claim: kube.JsonObject) -> Claim | None:
            try:
                return wire.read(wire.reduce(claim), self.node)
            except WireError:  # of another node, or not allocated
                return None

        found: list[Claim] = []
        params = {"limit": "500"}
        while True:
            try:
                page = self.api.list_page(f"{API}/resourceclaims", params, keep=kept, timeout_s=_LIST_S)
            except kube.NotFoundError:  # a server without claims
                return found
            found += [claim for claim in page.items if claim is not None]
            if not page.more:
                return found
            params = {"limit": "500", "continue": page.more}

    def check_assumed(self) -> Sequence[str]:
        """UIDs of claims that were assumed to be prepared, and are not allocated here any more."""
        return [
            claim.uid for claim in (self.prepared or {}).values() if claim.assumed and not self._is_allocated(claim)
        ]

    def _is_allocated(self, claim: Claim) -> bool:
        path = f"{API}/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        try:
            return wire.read(self.api.read_object(path, keep=wire.reduce, timeout_s=_GET_S), self.node).uid == claim.uid
        except (kube.NotFoundError, WireError):
            return False
        except kube.KubeError:  # not known
            return True

    def keep(self, prepared: Mapping[str, Claim]) -> None:
        """From now on. Raises ClaimError: it cannot be written, and nothing has changed."""
        self._write(prepared)
        self.prepared, self._unsaved = prepared, False

    def drop(self, uid: str) -> None:
        """Without this one, also where that cannot be written: then it is tried again, or a pod could never end."""
        self.prepared = {key: each for key, each in (self.prepared or {}).items() if key != uid}
        self._unsaved = True
        try:
            self.save()
        except ClaimError as error:
            logs.event(_LOG, "checkpoint not written", level=logging.ERROR, error=str(error))

    def save(self) -> None:
        """Write what could not be written before. May raise ClaimError."""
        if self._unsaved and self.prepared is not None:
            self._write(self.prepared)
            self._unsaved = False

    def _write(self, prepared: Mapping[str, Claim]) -> None:
        temporary = self.checkpoint.with_suffix(".tmp")
        try:
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8") as stream:
                stream.write(claims.encode(prepared.values()))
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(self.checkpoint)
        except OSError as error:
            raise ClaimError(
                f"{self.checkpoint} cannot be written ({error.strerror}); the kubelet will try again"
            ) from error
