"""JSON Patch (RFC 6902) from an object to the intended one. Pure.

Lists that grew or shrank are replaced whole: the patch is a little longer, and right without any thought about
indices that shift. (The moves that `jsonpatch.make_patch` derives for such lists can apply to the wrong element.)
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jsonpatch

Operation = dict[str, Any]
_OPERATIONS: Final = jsonpatch.JsonPatch.operations
_MOST: Final = 2000
"""Operations inside of one object or list. All containers that a pod may have take fewer."""


def verified(before: object, after: object) -> list[Operation]:
    """Operations from one object to the other, applied here first as the API server will.

    Raises:
        RuntimeError: they give another object. Nothing is sent then: a wrong patch could show a container a GPU.
    """
    operations = list(between(before, after))
    if applied(before, operations) != after:
        raise RuntimeError("the JSON patch does not give the intended object")
    return operations


def applied(before: object, operations: Sequence[Operation]) -> object:
    """The object after these operations. It shares with `before` all that they do not change: a copy would double it.

    Args:
        before: decoded JSON; stays as it is.
        operations: of the kinds that `between` makes.

    Raises:
        JsonPatchException, JsonPointerException, LookupError, TypeError, ValueError: they do not fit the object.
    """
    done = _opened(before, operations)
    for operation in operations:  # one by one: `apply_patch` makes each of them twice, and copies its value
        shared = {**operation, "value": _Shared(operation["value"])} if "value" in operation else operation
        done = _OPERATIONS[operation["op"]](shared).apply(done)
    return done


class _Shared:
    """A value of which the library's copy is the value itself."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __deepcopy__(self, memo: object) -> object:
        return self._value


def _opened(before: object, operations: Sequence[Operation]) -> object:
    """The same object with copies of those parts, and no others, that the operations change."""
    root = [before]
    copies: dict[int, Any] = {id(root): root}
    for operation in operations:
        parent: Any = root
        key: str | int = 0
        for token in operation["path"].split("/")[1:]:
            if id(parent[key]) not in copies:
                copy = parent[key] = parent[key].copy()
                copies[id(copy)] = copy
            parent = parent[key]
            key = int(token) if isinstance(parent, list) else _unescaped(token)
    return root[0]


def between(before: object, after: object, path: str = "") -> Iterator[Operation]:
    """Operations in the order in which they apply; what would take too many of them is replaced whole.

    Args:
        before: decoded JSON.
        after: decoded JSON; parts that it shares with `before` cost nothing.
        path: JSON pointer of both.
    """
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        inside = _between_objects(before, after, path)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        inside = _between_lists(before, after, path)
    else:
        if before != after:
            yield {"op": "replace", "path": path, "value": after}
        return
    operations = list(itertools.islice(inside, _MOST + 1)) if path else list(inside)
    if len(operations) > _MOST and path:
        yield {"op": "replace", "path": path, "value": after}
    else:
        yield from operations


def _between_lists(before: list[Any], after: list[Any], path: str) -> Iterator[Operation]:
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        yield from between(old, new, f"{path}/{i}")


def _between_objects(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[Operation]:
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
    for key, value in after.items():
        pointer = f"{path}/{_escaped(key)}"
        if key in before:
            yield from between(before[key], value, pointer)
        else:
            yield {"op": "add", "path": pointer, "value": value}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescaped(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")
