"""Writes docs/contributing/imports.md: who imports whom, read from the code. `make architecture` runs it."""

import sys
from collections.abc import Callable, Iterable
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import grimp

PAGE: Final = Path(__file__).parents[2] / "docs" / "contributing" / "imports.md"
PACKAGES: Final = (
    "gpushare",
    "certs",
    "controller",
    "deviceplugin",
    "gpushare_cli",
    "webhook",
    "localcluster",
    "testing",
    "bench",
    "release",
)
BASICS: Final = ("errors", "identity", "names", "units")
"""Modules of gpushare that nearly everything imports: one box."""
Imports = dict[str, set[str]]
_PAGE: Final = """# Import graph

An arrow means "imports". An arrow that follows from two others is left out.
This page is written by `make architecture` from the code; do not edit it.
[Architecture](../architecture.md) says what the packages are and which imports are allowed.

## Packages

{packages}
## Inside gpushare

`basics` stands for the modules {basics}.

{inside}"""


def page() -> str:
    """The page as it should be.

    Raises:
        graphlib.CycleError: packages import each other in a circle.
    """
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    direct = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    return _PAGE.format(
        packages=_mermaid(_reduced(_grouped(direct, _package))),
        basics=", ".join(f"`{name}`" for name in BASICS),
        inside=_mermaid(_reduced(_grouped(direct, _part_of_gpushare))),
    )


def _package(module: str) -> str:
    return module.partition(".")[0]


def _part_of_gpushare(module: str) -> str:
    package, _, rest = module.partition(".")
    part = rest.partition(".")[0]
    if package != "gpushare" or not part:
        return ""
    return "basics" if part in BASICS else part


def _grouped(direct: Imports, group: Callable[[str], str]) -> Imports:
    """Imports between groups of modules; modules whose group is empty are left out."""
    result: Imports = {name: set() for module in direct if (name := group(module))}
    for module, imported in direct.items():
        if (name := group(module)) in result:
            result[name] |= {other for each in imported if (other := group(each)) and other != name}
    return result


def _reduced(imports: Imports) -> Imports:
    """Without the arrows that follow from two others."""
    reached: Imports = {}
    result: Imports = {}
    for name in TopologicalSorter(imports).static_order():
        through = set[str]().union(*(reached[other] for other in imports[name]))
        result[name] = imports[name] - through
        reached[name] = imports[name] | through
    return result


def _mermaid(imports: Imports) -> str:
    arrows: Iterable[str] = (f"  {name} --> {other}" for name in sorted(imports) for other in sorted(imports[name]))
    return "\n".join(["```mermaid", "graph TD", *arrows, "```", ""])


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: docs/contributing/{PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
