"""YAML and JSON files of users -> plain values, and back. The command line's only door to the YAML library."""

from typing import Any, Final

import orjson
import yaml

from gpushare.errors import WireError

_MOST_LEVELS: Final = 100  # no object of Kubernetes comes near, and what prints a value recurs
_TOO_DEEP: Final = f"nested more than {_MOST_LEVELS} levels deep"
_TIME: Final = "tag:yaml.org,2002:timestamp"
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is there
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Loader(_Base):  # type: ignore[misc] # one of two classes
    """Leaves texts that look like times as they are, as in the objects of an API server."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIME]
    for first, resolvers in _Base.yaml_implicit_resolvers.items()
}


def load_all(text: str, what: str) -> list[object]:
    """Every document of a text, YAML or JSON, which is from `what`; empty ones are None. Else WireError says where."""
    documents = _load(text, what)
    for document in documents:
        _check(document, what)
    return documents


def dump(value: object) -> str:
    """One document as YAML, with its fields in their order; as of kubectl, no text goes on in a next line."""
    text: str = yaml.dump(value, Dumper=_DUMPER, sort_keys=False, width=2**31 - 1)
    return text


def dump_json(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def dump_plain(value: object) -> str:
    """YAML of the same values as `dump_json`: of enumerations and tuples what JSON makes of them."""
    return dump(orjson.loads(orjson.dumps(value)))


def _load(text: str, what: str) -> list[object]:
    try:
        return [orjson.loads(text)]
    except orjson.JSONDecodeError:
        pass  # several documents, or YAML; where it ends, YAML knows as well
    try:
        _check_depth(text, what)
        return list(yaml.load_all(text, _Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise WireError(f"{what}: not YAML{where}; check indentation and brackets") from error
    except ValueError as error:
        raise WireError(f"{what}: not YAML: a number that cannot be read") from error


def _check_depth(text: str, what: str) -> None:
    """Before values are made, because that recurs in C, where too deep a text ends the program."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MOST_LEVELS:
                raise WireError(f"{what}: {_TOO_DEEP}")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check(value: object, what: str, level: int = 0) -> None:
    """Refuse what no object of Kubernetes is. An alias inside of what it is an alias of has no end of levels."""
    if not isinstance(value, (dict, list)):
        return
    if level >= _MOST_LEVELS:
        raise WireError(f"{what}: {_TOO_DEEP}")
    if isinstance(value, dict):
        odd = next((key for key in value if not isinstance(key, str)), "")
        if not isinstance(odd, str):
            raise WireError(f"{what}: the name of a field must be a string, found {odd!r:.100}; put it in quotes")
    for child in value.values() if isinstance(value, dict) else value:
        _check(child, what, level + 1)
