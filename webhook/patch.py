"""JSON Patch (RFC 6902) from an object to the intended one. Pure.

Lists that grew or shrank are replaced whole: the patch is a little longer, and right without any thought about
indices that shift. (The moves that `jsonpatch.make_patch` derives for such lists can apply to the wrong element.)
"""

import json
from collections.abc import Iterator
from typing import Any

import jsonpatch

Operation = dict[str, Any]


def verified(before: object, after: object) -> list[Operation]:
    """Operations from one object to the other, applied here first as the API server will.

    Raises:
        RuntimeError: they give another object. Nothing is sent then: a wrong patch could show a container a GPU.
    """
    operations = list(between(before, after))
    # A round trip instead of the library's deep copy, which nests too deep for a pod made to be hard.
    if jsonpatch.apply_patch(json.loads(json.dumps(before)), operations, in_place=True) != after:
        raise RuntimeError("the JSON patch does not give the intended object")
    return operations


def between(before: object, after: object, path: str = "") -> Iterator[Operation]:
    """Operations in the order in which they apply.

    Args:
        before: decoded JSON.
        after: decoded JSON; parts that it shares with `before` cost nothing.
        path: JSON pointer of both.
    """
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _between_objects(before, after, path)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from between(old, new, f"{path}/{i}")
    elif before != after:
        yield {"op": "replace", "path": path, "value": after}


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
