"""Loaded by every Python program that a test starts: the program has the mutant too."""

import marshal
import os
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Final

MODULE: Final = "MUTANTS_MODULE"
"""The file of the changed module."""
CODE: Final = "MUTANTS_CODE"
"""The file with what it compiles to."""


def serve(path: str, changed: CodeType) -> None:
    """Serve a module with the change to every import of this process from now on."""
    ask = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        return changed if loader.path == path else ask(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]  # for this process


if MODULE in os.environ:
    serve(os.environ[MODULE], marshal.loads(Path(os.environ[CODE]).read_bytes()))
