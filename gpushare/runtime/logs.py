"""Structured logs: one line a decision, JSON in the cluster, text on a terminal.

`event(log, "bound", pod=..., node=...)` gives `{"ts": ..., "level": "info", "logger": ..., "event": "bound", ...}`.
"""

import logging
import sys
import time
from collections.abc import Collection, Hashable
from typing import Any, Final, TextIO

import orjson

_FIELDS: Final = "gpushare_fields"
_LONGEST: Final = 2000  # characters of a field: some texts were written by others


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= getattr(record, _FIELDS, {})
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value}" for key, value in getattr(record, _FIELDS, {}).items())
        line = (
            f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {record.name} {record.getMessage()} {fields}"
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(*, level: str = "info", stream: TextIO | None = None, text: bool | None = None) -> None:
    """Send all logs to one stream, standard error by default, as text on a terminal and else as JSON.

    Called by composition roots only; `level` is debug, info, warning or error.
    """
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    as_text = target.isatty() if text is None else text
    formatter: logging.Formatter = _TextFormatter() if as_text else _JsonFormatter()
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # its retries are ours to report


def event(
    log: logging.Logger, name: str, *, level: int = logging.INFO, exc_info: bool = False, **fields: object
) -> None:
    """One decision or incident: a constant name, everything that varies in fields."""
    if not log.isEnabledFor(level):
        return
    extra = {_FIELDS: {key: _cut(value) for key, value in fields.items()}}
    # Not by `log.log`, which walks the stack to find its caller: the name and the fields say more.
    record = log.makeRecord(log.name, level, "", 0, name, (), sys.exc_info() if exc_info else None, extra=extra)
    log.handle(record)


class Changes:
    """Logs what is found out again and again when it changes; of many threads at once, some may log it twice."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[tuple[Hashable, str], dict[str, object]] = {}

    def say(self, name: str, about: Hashable = None, *, level: int = logging.INFO, **fields: object) -> None:
        """See `event`. Args: about: what the event is about, if each of several is told of by itself."""
        if self._last.get((about, name)) != fields:
            event(self._log, name, level=level, exc_info=False, **fields)
        self._last[about, name] = fields

    def clear(self, about: Hashable = None) -> None:
        """It is well, so that the same is told again when it comes back."""
        self.keep({known for known, _ in list(self._last)} - {about})

    def keep(self, present: Collection[Hashable]) -> None:
        """Forget about all else."""
        self._last = {key: fields for key, fields in dict(self._last).items() if key[0] in present}


def _cut(value: object) -> object:
    return f"{value[: _LONGEST - 4]} ..." if isinstance(value, str) and len(value) > _LONGEST else value
