"""Settings: flag, else environment variable, else default, into a frozen dataclass.

A settings class is a frozen dataclass whose fields are made by `option`. `--help` is generated from it.
"""

import argparse
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Any, TypeVar

import gpushare
from gpushare.errors import SettingsError
from gpushare.units import MemoryUnit

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


def option(default: Any, help: str, *, parse: Callable[[str], Any] = str) -> Any:  # noqa: A002 - dataclasses.field returns Any too
    """A setting: its default, its meaning for `--help` and the reference, and how its text is read.

    `parse` may raise ValueError or SettingsError; what it says becomes the user's message.
    """
    return dataclasses.field(default=default, metadata={"help": help, "parse": parse})


def log_level() -> Any:
    return option("info", "debug, info, warning or error", parse=choice("debug", "info", "warning", "error"))


def written(value: object) -> str:
    """A value as an administrator writes it for a flag or a variable."""
    match value:
        case None:
            return ""
        case MemoryUnit():
            return value.name
        case Enum() if not isinstance(value, IntEnum):
            return str(value.value)
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case tuple() | frozenset():
            return ",".join(map(str, value))
        case _:
            return str(value)


def boolean(text: str) -> bool:
    if text.lower() in {"true", "1", "yes"}:
        return True
    if text.lower() in {"false", "0", "no"}:
        return False
    raise ValueError("write true or false")


def choice(*allowed: str) -> Callable[[str], str]:
    return _known({word: word for word in allowed})


def one_of(words: type[E]) -> Callable[[str], E]:
    return _known({str(word.value): word for word in words})


def _known(by_word: Mapping[str, T]) -> Callable[[str], T]:
    def parse(text: str) -> T:
        if text not in by_word:
            raise ValueError(f"write one of {', '.join(by_word)}")
        return by_word[text]

    return parse


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError("write a number above 0")
    return value


def seconds(zero: str) -> Callable[[str], float]:
    """Of a time that may be 0. Args: zero: how the user is told so."""

    def parse(text: str) -> float:
        value = float(text)
        if not 0 <= value < float("inf"):
            raise ValueError(f"write a number of seconds, {zero}")
        return value

    return parse


def between(least: int, most: int, what: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"write {what} from {least} to {most}")
        return int(text)

    return parse


port = between(0, 65535, "a port")


def load(cls: type[T], argv: Sequence[str], *, prog: str, environ: Mapping[str, str] | None = None) -> T:
    """Build settings from flags and environment.

    Field `memory_unit` of a dataclass made of `option` is flag `--memory-unit` and variable `GPUSHARE_MEMORY_UNIT`.
    Raises SettingsError: a value cannot be used; names flag or variable, value and fix.
    """
    variables = os.environ if environ is None else environ
    fields = [field for field in dataclasses.fields(cls) if "help" in field.metadata]  # type: ignore[arg-type]
    parser = argparse.ArgumentParser(prog=prog, description=cls.__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{prog} {gpushare.__version__}")
    for field in fields:
        flag, variable = flag_names(field.name)
        default = written(field.default) or "empty"
        parser.add_argument(flag, metavar="VALUE", help=f"{field.metadata['help']} [{variable}; {default}]")
    given = vars(parser.parse_args(list(argv)))
    values: dict[str, Any] = {}
    for field in fields:
        flag, variable = flag_names(field.name)
        text, source = given[field.name], flag
        if text is None:
            text, source = variables.get(variable), variable
        if text is None:
            continue
        try:
            values[field.name] = field.metadata["parse"](text)
        except (ValueError, SettingsError) as error:
            raise SettingsError(f"{source}={text!r}: {error}") from error
    return cls(**values)


def flag_names(name: str) -> tuple[str, str]:
    return "--" + name.replace("_", "-"), "GPUSHARE_" + name.upper()


def environment(name: str, default: str | None = None) -> str | None:
    """A variable that others define, such as KUBECONFIG."""
    return os.environ.get(name, default)
