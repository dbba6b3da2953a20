"""For `make lint`: lines and files beside those of the last release, and modules that are too small to stand alone."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).parents[1]
LAST: Final = "e570b29"
PRODUCT: Final = ("gpushare", "webhook", "controller", "deviceplugin", "certs", "gpushare_cli")
MOST_ALONE: Final = 23
"""Modules with a single importer, in their own package: no more than there are."""
SMALL: Final = 60
REASON: Final = re.compile(r"^# A file of its own: \S", re.MULTILINE)
NOT_COUNTED: Final = re.compile(r"_pb2\.py$")


def lines(commit: str = "") -> Mapping[str, int]:
    """Lines of each Python file, by path; of the working tree without a commit, none of a commit that is not here."""
    words = ["git", "-C", str(ROOT), "grep", "-c", "", *([commit] if commit else []), "--", "*.py"]
    done = subprocess.run(words, check=not commit, capture_output=True, text=True)
    counts = (line.removeprefix(f"{commit}:").rpartition(":") for line in done.stdout.splitlines())
    return {path: int(number) for path, _, number in counts if not NOT_COUNTED.search(path)}


def table(now: Mapping[str, int], then: Mapping[str, int]) -> list[str]:
    """By top folder, then the product's sum: lines and files, now and at the last release."""

    def of(counts: Mapping[str, int]) -> tuple[Counter[str], Counter[str]]:
        total, files = Counter[str](), Counter[str]()
        for path, number in counts.items():
            for name in {top := path.partition("/")[0], "product" if top in PRODUCT else top}:
                total[name] += number
                files[name] += 1
        return total, files

    (lines_now, files_now), (lines_then, files_then) = of(now), of(then)
    names = [*sorted({*lines_now, *lines_then} - {"product"}), "product"]
    rows = [
        f"{name:14} {lines_now[name]:7,} {files_now[name]:5} {lines_then[name]:8,} {files_then[name]:5}"
        for name in names
    ]
    return [f"{'':14} {'lines':>7} {'files':>5} {LAST:>8} {'files':>5}", *rows]


def alone() -> dict[str, str]:
    """Modules with one importer, which is in their own package, and that importer."""
    graph = grimp.build_graph(*PRODUCT, cache_dir=None)
    found = {}
    for module in graph.modules:
        importers = graph.find_modules_that_directly_import(module)
        if len(importers) == 1 and not graph.find_children(module):
            [importer] = importers
            if importer.rpartition(".")[0] == module.rpartition(".")[0]:
                found[module] = importer
    return found


def main() -> int:
    now = lines()
    print("\n".join(table(now, lines(LAST))))
    neighbours = alone()
    print(f"{len(neighbours)} modules have a single importer, in their own package; at most {MOST_ALONE}")
    faults = []
    for module, importer in sorted(neighbours.items()):
        path = module.replace(".", "/") + ".py"
        if now[path] < SMALL and not REASON.search((ROOT / path).read_text(encoding="utf-8")):
            say = "merge them, or say why not in a line `# A file of its own: ...`"
            faults.append(f"{path}: {now[path]} lines, imported by {importer} alone: {say}")
    if len(neighbours) > MOST_ALONE:
        faults.append("modules with a single importer, in their own package: " + ", ".join(sorted(neighbours)))
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
