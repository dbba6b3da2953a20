"""The picture of the moment, and what of it has changed since a version. Safe for threads."""

import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final

import orjson

from gpushare_cli.dashboard.model import Happening, NodeView, Overview, Waiting

_HIDDEN: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that a tenant could write to make text look like other text, as in `gpushare_cli.console`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that is shown at one moment."""

    version: int
    nodes: Mapping[str, NodeView]
    overview: Overview
    waiting: tuple[Waiting, ...] = ()
    happenings: tuple[Happening, ...] = ()


@dataclass(slots=True)
class _Part:
    version: int
    data: bytes | None
    """JSON; None of a node that is gone."""


@dataclass(eq=False)
class Feed:
    """Keeps every part of the picture as JSON with the version that changed it."""

    _turn: threading.Condition = field(init=False, default_factory=threading.Condition)
    _followers: int = field(init=False, default=0)
    _picture: Picture | None = field(init=False, default=None)
    _nodes: dict[str, _Part] = field(init=False, default_factory=dict)
    _parts: dict[str, _Part] = field(init=False, default_factory=dict)

    @property
    def picture(self) -> Picture | None:
        """The latest; None until everything was read for the first time."""
        return self._picture

    def publish(
        self,
        changed: Mapping[str, NodeView | None],
        overview: Overview,
        waiting: tuple[Waiting, ...],
        happenings: tuple[Happening, ...],
    ) -> None:
        """A new picture: nodes that may have changed, None for those that are gone, and all the rest."""
        encoded = {name: None if view is None else _json(view) for name, view in changed.items()}
        rest = {"overview": _json(overview), "waiting": _json(waiting), "happenings": _json(happenings)}
        with self._turn:
            before = self._picture
            version = 1 if before is None else before.version + 1
            fresh = _update(self._nodes, encoded, version) | _update(self._parts, rest, version)
            if before is not None and not fresh:
                return
            nodes = dict(before.nodes) if before is not None else {}
            for name, view in changed.items():
                if view is None:
                    nodes.pop(name, None)
                else:
                    nodes[name] = view
            self._picture = Picture(
                version=version, nodes=nodes, overview=overview, waiting=waiting, happenings=happenings
            )
            self._turn.notify_all()

    def wait(self, version: int, timeout_s: float) -> int:
        """The version of the latest picture, as soon as it is another one than this, or after so many seconds."""
        with self._turn:
            self._followers += 1
            try:
                self._turn.wait_for(lambda: self._version() != version, timeout_s)
            finally:
                self._followers -= 1
            return self._version()

    @property
    def is_followed(self) -> bool:
        """Whether anyone waits for the next picture."""
        return self._followers > 0

    def since(self, version: int) -> tuple[int, Sequence[bytes]]:
        """The latest version, and as pieces of JSON what has changed since another one; everything for version 0.

        The pieces are those that are kept: a hundred megabytes for many slow readers are in memory once.
        """
        with self._turn:
            nodes = [part.data for part in self._nodes.values() if part.version > version and part.data is not None]
            gone = [name for name, part in self._nodes.items() if part.version > version and part.data is None]
            found = [b'{"full":%s,"nodes":[' % (b"false" if version else b"true")]
            for i, data in enumerate(nodes):
                found += [b",", data] if i else [data]
            found.append(b"]")
            if version and gone:
                found += [b',"gone":', _json(gone)]
            for name, part in self._parts.items():
                if part.version > version and part.data is not None:
                    found += [b',"%s":' % name.encode(), part.data]
            return self._version(), [*found, b"}"]

    def _version(self) -> int:
        return 0 if self._picture is None else self._picture.version


def _update(parts: dict[str, _Part], encoded: Mapping[str, bytes | None], version: int) -> bool:
    """Whether anything is not as it was."""
    changed = {name: data for name, data in encoded.items() if data != (parts[name].data if name in parts else None)}
    for name, data in changed.items():
        parts[name] = _Part(version, data)
    return bool(changed)


def _json(value: Any) -> bytes:
    r"""With the characters that hide as `\\u202e`, which is then read as these six."""
    try:
        text = orjson.dumps(value).decode()
    except TypeError:  # more than 64 bits: three pods that claim 2**63 MiB each, where nothing checks what pods claim
        text = json.dumps(value, default=_plain, ensure_ascii=False)
    return _HIDDEN.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return {each.name: getattr(value, each.name) for each in fields(value)}
