"""The Helm chart's values.yaml, its schema and the reference page, from one table, so that they cannot differ."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from release.pages.chart_cluster import CERTIFICATES_AND_NETWORK, CLUSTER, monitoring
from release.pages.chart_components import components
from release.pages.chart_schema import BOOLEAN, OBJECT, Json, Value

CHART: Final = Path(__file__).parents[2] / "manifests" / "chart"


def values() -> Iterator[Value]:
    """All values of the chart, in the order of values.yaml."""
    yield from (*CLUSTER, *CERTIFICATES_AND_NETWORK)
    yield from monitoring()
    yield from components()


def schema() -> Json:
    """The chart's values.schema.json."""
    root: Json = _node() | {"$schema": "http://json-schema.org/draft-07/schema#"}
    # Where this chart is part of another, Helm adds the first, and that chart's condition may be the second.
    root["properties"] |= {"global": OBJECT, "enabled": BOOLEAN}
    for value in values():
        *parents, key = value.path.split(".")
        node = root
        for parent in parents:
            node = node["properties"].setdefault(parent, _node())
        node["properties"][key] = {"description": value.text} | value.schema
        if not _is_setting(value):
            _require(root, parents if _may_be_left_out(value) else [*parents, key])
    return root


def _require(node: Json, path: list[str]) -> None:
    """Helm names what is missing where a null took a default away, or an older version's values are used again."""
    for key in path:
        required = node.setdefault("required", [])
        if key not in required:
            required.append(key)
        node = node["properties"][key]


def _may_be_left_out(value: Value) -> bool:
    """Whether nothing says the same as the default."""
    return value.default in (None, "") or (isinstance(value.default, list | dict) and not value.default)


def _node() -> Json:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def written() -> Mapping[str, str]:
    """The files of the chart that are made from the table."""
    return {"values.schema.json": json.dumps(schema(), indent=1) + "\n", "values.yaml": values_file()}


HEAD: Final = """# The values of this chart, written by `make docs`; docs/reference/chart.md has the same as a table.
# What is null, empty or commented out is as the manifests beside this chart say.
"""


def values_file() -> str:
    """values.yaml."""
    lines = [HEAD]
    at: list[str] = []
    for value in values():
        *parents, key = value.path.split(".")
        for depth, parent in enumerate(parents):
            if at[depth : depth + 1] != [parent]:
                at = [*at[:depth], parent]
                own_settings = parent == "settings" and depth > 0
                lines.append(f"{'  ' * depth}{parent}:{' {}' if own_settings else ''}")
        at = at[: len(parents)]
        indent = "  " * len(parents)
        lines += textwrap.wrap(
            value.text, 116 - len(indent), initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        lines.append(f"{indent}{'# ' if _is_setting(value) else ''}{key}: {_shown(value)}")
    return "\n".join(lines) + "\n"


def _is_setting(value: Value) -> bool:
    return ".settings." in value.path


def _shown(value: Value) -> str:
    return json.dumps(value.default)


PAGE_HEAD: Final = """# Values of the Helm chart

[Install](../install.md#install-with-helm) says how to use them. `null` and empty defaults mean: as in the manifests.
Helm refuses values that are not in this table, and says which.
This page is written by `make docs` from the code; do not edit it.

| value | default | meaning |
|---|---|---|
"""


def page() -> str:
    """The reference page."""
    return PAGE_HEAD + "".join(map(_row, values()))


def _row(value: Value) -> str:
    text = value.text.replace("|", "\\|")
    return f"| `{value.path}` | `{json.dumps(value.default)}` | {text} |\n"
