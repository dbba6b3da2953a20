"""The pages of the documents, as tests read them."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def text(name: str) -> str:
    """Of a file of the project."""
    return (ROOT / name).read_text(encoding="utf-8")
