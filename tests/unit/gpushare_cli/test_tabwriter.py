"""The layout rules of Go's text/tabwriter."""

import pytest

from gpushare_cli import tabwriter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain\n", "plain\n"),
        ("a\tb\nlong\tc\n", "a     b\nlong  c\n"),
        ("a\t\n", "a  \n"),  # a cell that ends with a tab is padded, also at the line's end
        ("a\tlonger than all\nb\tc\n", "a  longer than all\nb  c\n"),  # the last cell belongs to no column
        ("a\tb\nno tab\nlonger\tc\n", "a  b\nno tab\nlonger  c\n"),  # a line without tabs ends the block
        ("\tb\n\tc\n", "  b\n  c\n"),  # an empty column is as wide as the padding
        ("a\tb\tc\nd\te\nf\tgg\th\n", "a  b  c\nd  e\nf  gg  h\n"),  # each block has widths of its own
        ("名\tb\nxx\tc\n", "名   b\nxx  c\n"),  # counted in characters
    ],
)
def test_cells_of_neighbouring_lines_form_columns(text: str, expected: str) -> None:
    assert tabwriter.layout(text) == expected
