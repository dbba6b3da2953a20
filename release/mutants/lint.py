"""Whether the type checker, which `make lint` runs, refuses a mutant: it cannot be committed then."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Set
from pathlib import Path

from release.mutants.changes import Mutant, mutants_of


def refused(root: Path, cache: Path, mutants: Set[Mutant], report: Callable[[Mutant, bool], None]) -> None:
    """Check every mutant, with a cache in this directory. Trees are compared as they are printed, without comments."""
    for file in sorted({mutant.file for mutant in mutants}):
        source = (root / file).read_text(encoding="utf-8")
        before = _errors(root, cache, file, ast.unparse(ast.parse(source)))
        for mutant, tree in mutants_of(source, file):
            if mutant in mutants:
                report(mutant, bool(_errors(root, cache, file, ast.unparse(tree)) - before))


def _errors(root: Path, cache: Path, file: str, text: str) -> Counter[str]:
    """What mypy says of a module with this text, without the lines."""
    cache.mkdir(parents=True, exist_ok=True)
    shadow = cache / "mutant.py"
    shadow.write_text(text, encoding="utf-8")
    options = ["--cache-dir", str(cache), "--no-error-summary", "--shadow-file", file, str(shadow)]
    command = [sys.executable, "-m", "mypy", *options, file]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode not in {0, 1}:
        raise RuntimeError(f"mypy ends with {done.returncode}: {done.stdout}{done.stderr}")
    return Counter(re.findall(r"^\S+?:\d+: (error: .*)$", done.stdout, re.MULTILINE))
