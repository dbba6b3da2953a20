"""Writes docs/reference/settings.md from the settings classes, so that the page cannot drift. `make docs` runs it.

It lives with the tests because no component may import the others.
"""

import dataclasses
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import controller.settings
import deviceplugin.settings
import webhook.settings
from gpushare.runtime import options
from gpushare.units import MemoryUnit

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
COMPONENTS: tuple[tuple[str, type[Any]], ...] = (
    ("gpushare-webhook", webhook.settings.Settings),
    ("gpushare-controller", controller.settings.Settings),
    ("gpushare-device-plugin", deviceplugin.settings.Settings),
)
HEAD = """# Settings

Every setting is a flag or an environment variable; the flag wins.
A value that cannot be used ends the program with exit code 2 and a line that names the flag or variable and the fix.
This page is written by `make docs` from the code; do not edit it.
"""


def page() -> str:
    """The page as it should be."""
    sections = (_section(name, settings) for name, settings in COMPONENTS)
    return "\n".join([HEAD, *sections])


def _section(name: str, settings: type[Any]) -> str:
    lines = [f"## {name}", "", (settings.__doc__ or "").strip().splitlines()[0], ""]
    lines += ["| flag | variable | default | meaning |", "|---|---|---|---|", *_rows(settings), ""]
    return "\n".join(lines)


def _rows(settings: type[Any]) -> Iterator[str]:
    for field in dataclasses.fields(settings):
        if "help" not in field.metadata:
            continue
        flag, variable = options.spelling(field.name)
        meaning = field.metadata["help"].replace("|", "\\|")
        yield f"| `{flag}` | `{variable}` | {_default(field.default)} | {meaning} |"


def _default(value: object) -> str:
    match value:
        case MemoryUnit():
            text = value.name
        case Enum():
            text = str(value.value)
        case bool():
            text = str(value).lower()
        case float():
            text = f"{value:g}"
        case tuple():
            text = ",".join(map(str, value))
        case _:
            text = str(value)
    return f"`{text}`" if text else "empty"


def main() -> int:
    """Write the page."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE.relative_to(Path(__file__).parents[2])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
