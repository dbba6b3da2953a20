"""How Sphinx builds the documents into a site. `make site` runs it from the repository's root, which is its source.

So each page exists once, and the same links work in the repository and on the site.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gpushare

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT: Final = Path(__file__).parents[2]
CONTENTS: Final = "\n## Documents\n"
"""The heading of the README's table, from which the navigation is made."""

project = "gpushare"
version = release = gpushare.__version__
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "manifests/README.md"]
exclude_patterns = [".*", "build", "tests"]
myst_heading_anchors = 5
nitpicky = True
smartquotes = False

html_theme = "furo"
html_title = f"{project} {release}"
html_favicon = html_logo = "../logo.svg"
html_static_path = ["static"]
html_extra_path = ["root"]
templates_path = ["templates"]
html_css_files = ["site.css"]
html_sidebars = {
    "**": [
        *("sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html"),
        *("sidebar/navigation.html", "versions.html", "sidebar/scroll-end.html"),
    ]
}
html_copy_source = html_show_sourcelink = html_show_copyright = html_show_sphinx = False


def navigation(readme: str) -> str:
    """The README's table of documents, as Sphinx wants it: one part for each row in bold type.

    Args:
        readme: the page's Markdown.

    Returns:
        Directives that show nothing on the page itself.
    """
    parts: dict[str, list[str]] = {}
    caption = ""
    for row in readme.partition(CONTENTS)[2].partition("\n## ")[0].splitlines():
        if bold := re.match(r"\| \*\*(.+?)\*\* \|", row):
            caption = bold[1]
        elif pages := re.findall(r"\]\((\S+)\.md\)", row):
            parts.setdefault(caption, []).extend(pages)
    directives = (
        "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", *pages, "```", ""])
        for caption, pages in parts.items()
    )
    return "".join(directives)


def _read(_: "Sphinx", name: str, content: list[str]) -> None:
    """Adapt a page: the README carries the navigation, and a diagram that GitHub draws is shown as text."""
    if name == root_doc:
        content[0] += navigation(content[0])
    content[0] = content[0].replace("```mermaid\n", "```text\n")


def setup(app: "Sphinx") -> None:
    """Sphinx calls this."""
    app.connect("source-read", _read)
