"""Files of users become values or one message that says where."""

import pytest

from gpushare.errors import WireError
from gpushare_cli import yamls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a: 1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("---\n---\n", [None, None]),
        ('{"a": [1]}', [{"a": [1]}]),
        ("{a: 1}\n---\n{b: 2}", [{"a": 1}, {"b": 2}]),
        ("time: 2024-01-01T00:00:00Z", [{"time": "2024-01-01T00:00:00Z"}]),
        ("a: &x [1]\nb: *x", [{"a": [1], "b": [1]}]),
    ],
)
def test_documents_are_read(text: str, expected: list[object]) -> None:
    assert yamls.load_all(text, "f.yaml") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "f.yaml: not YAML at line 2, column 1; check indentation and brackets"),
        ("a: b: c", "f.yaml: not YAML at line 1, column 5; check indentation and brackets"),
        ("\tx: 1", "f.yaml: not YAML at line 1, column 1; check indentation and brackets"),
        ('{"a": }x', "f.yaml: not YAML at line 1, column 8; check indentation and brackets"),
        ("a: *other", "f.yaml: not YAML at line 1, column 4; check indentation and brackets"),
        ("a: !!python/name:os.system x", "f.yaml: not YAML at line 1, column 4; check indentation and brackets"),
        ("\x00", "f.yaml: not YAML; check indentation and brackets"),
        ("9" * 5000, "f.yaml: not YAML: a number that cannot be read"),
        ("a: &x [*x]", "f.yaml: nested more than 100 levels deep"),
        ("[" * 100_000, "f.yaml: nested more than 100 levels deep"),
        ("- " * 100_000, "f.yaml: nested more than 100 levels deep"),
        ('{"a":' * 101 + "1" + "}" * 101, "f.yaml: nested more than 100 levels deep"),
        ("{1: 2}", "f.yaml: the name of a field must be a string, found 1; put it in quotes"),
        ("on: 2", "f.yaml: the name of a field must be a string, found True; put it in quotes"),
    ],
)
def test_what_is_no_yaml_is_told_with_its_place(text: str, message: str) -> None:
    with pytest.raises(WireError) as caught:
        yamls.load_all(text, "f.yaml")
    assert str(caught.value) == message
