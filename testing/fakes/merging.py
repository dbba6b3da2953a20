"""Patches as the API server applies them. Inputs are never changed."""

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import jsonpatch
import orjson

from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject

T = TypeVar("T")


def clone(value: T) -> T:
    """A deep copy of JSON, much faster than `copy.deepcopy`."""
    return cast(T, orjson.loads(orjson.dumps(value)))


def merged(before: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return clone(change)
    result = dict(before) if isinstance(before, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def strategic(before: Any, change: Any) -> Any:
    """As `merged`, but lists of objects are merged by `type`, `name` or `uid`, like conditions and containers."""
    if isinstance(change, dict):
        result = dict(before) if isinstance(before, dict) else {}
        for key, value in change.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = strategic(result.get(key), value)
        return result
    if isinstance(change, list) and isinstance(before, list):
        key = next((k for k in ("type", "name", "uid") if all(isinstance(i, dict) and k in i for i in change)), None)
        if key:
            fresh = {item[key]: item for item in change}
            kept = [strategic(item, fresh.pop(item[key])) if item[key] in fresh else item for item in before]
            return [*kept, *clone(list(fresh.values()))]
    return clone(change)


def json_patched(before: JsonObject, change: Sequence[JsonObject]) -> JsonObject:
    """RFC 6902; a failed test or a missing path is the caller's fault, as for the API server."""
    try:
        result = jsonpatch.apply_patch(before, list(change))
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise kube.BadRequestError(
            f"the server rejected our request due to an error in our request: {error}"
        ) from error
    if not isinstance(result, dict):
        raise kube.BadRequestError("the patch leaves no object")
    return result
