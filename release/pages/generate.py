"""Writes the pages of docs/reference, other pages, and the chart's values from the code, so that they cannot drift.

`make docs` runs it. It is in no component, because none may import the others.
"""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import controller.settings
import deviceplugin.mps
import deviceplugin.settings
import webhook.settings
from gpushare.runtime import options
from release import manifests
from release.pages import chart, cli, doctor, escapes, metrics, pod_way, requests, top_picture, xids

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMPONENTS: tuple[tuple[str, type[Any]], ...] = (
    ("gpushare-webhook", webhook.settings.Settings),
    ("gpushare-controller", controller.settings.Settings),
    ("gpushare-device-plugin", deviceplugin.settings.Settings),
    ("gpushare-mps", deviceplugin.mps.Settings),
)
HEAD = """# Settings

Every setting is a flag or an environment variable; the flag wins.
A value that cannot be used ends the program with exit code 2 and a line that names the flag or variable and the fix.
In the [chart](chart.md) a setting of a component is `settings.NAME`, such as `controller.settings.leaseSeconds`; \
with kubectl, [a patch](../../manifests/README.md#settings) sets its variable.
This page is written by `make docs` from the code.
"""


def pages() -> dict[str, str]:
    """Path below docs -> the page as it should be."""
    return {
        "reference/settings.md": settings_page(),
        "request.md": requests.filled((DOCS / "request.md").read_text(encoding="utf-8")),
        "reference/doctor.md": doctor.page(),
        "reference/cli.md": cli.page(),
        "reference/xids.md": xids.page(),
        "contributing/escapes.md": escapes.page(),
        "reference/chart.md": chart.page(),
        "reference/metrics.md": metrics.page(),
    }


def settings_page() -> str:
    """Every setting of every component."""
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
        flag, variable = options.flag_names(field.name)
        meaning = field.metadata["help"].replace("|", "\\|")
        default = options.written(field.default)
        yield f"| `{flag}` | `{variable}` | {f'`{default}`' if default else 'empty'} | {meaning} |"


def main() -> int:
    """Write the pages."""
    for name, page in pages().items():
        (DOCS / name).write_text(page, encoding="utf-8")
        print(f"written: {(DOCS / name).relative_to(ROOT)}")
    for name, text in chart.written().items():
        (chart.CHART / name).write_text(text, encoding="utf-8")
        print(f"written: {(chart.CHART / name).relative_to(ROOT)}")
    for path, text in manifests.files().items():
        path.write_text(text, encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")
    for path, picture in {
        pod_way.PICTURE: pod_way.svg(pod_way.table()),
        top_picture.PICTURE: top_picture.made(),
    }.items():
        path.write_text(picture, encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
