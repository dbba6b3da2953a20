"""AdmissionReview v1 in and out, the structure of its objects, and the patches between them. Pure.

The API server sends a review with a `request` and reads one with a `response` of the same `uid`. Its objects are well
formed; everything else is answered with a message.
"""

import base64
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, cast

import jsonpatch
import orjson

from gpushare.errors import FieldError, InvalidRequestError, WireError
from gpushare.wire import fields, pods
from gpushare.wire.fields import JsonObject

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
MOST_ERRORS: Final = 20  # that an author is told at once. A pod made to be hard has a million.
_INDEX: Final = re.compile(r"\[[^\]]*\]")
_CONTAINERS: Final = ("/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers")
_UID: Final = re.compile(rb'"request":\{"uid":"([0-9A-Za-z-]{1,64})"')


class Refusal(Enum):
    """HTTP status and reason that the API server gives to its client."""

    INVALID = 400, "BadRequest"  # Its author can fix it. Not with 422, of which kubectl shows only that it is invalid.
    FORBIDDEN = 403, "Forbidden"
    UNAVAILABLE = 503, "ServiceUnavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    uid: str
    operation: str  # CREATE, UPDATE, DELETE or CONNECT
    resource: str  # plural, with the subresource: `pods/status`. Resources of other API groups end in `.group`.
    kind: str
    namespace: str
    name: str  # as in `named`: with a `*` while the API server has yet to complete it
    user: str
    is_dry_run: bool
    obj: object  # the object after the change, not checked
    old: object  # the object before an update, not checked


def parse(body: bytes) -> Review:
    """Read the API server's request. Raises WireError: it is no AdmissionReview of a version that is spoken here."""
    value = fields.body(body)
    if value.get("kind") != KIND:
        raise WireError(f"kind: expected {KIND}, found {value.get('kind')!r:.100}")
    if value.get("apiVersion") != API_VERSION:
        raise WireError(
            f"apiVersion: expected {API_VERSION}, found {value.get('apiVersion')!r:.100};"
            " list v1 in the webhook's admissionReviewVersions"
        )
    request = fields.needed_mapping(value, "request", "")
    obj = request.get("object")
    return Review(
        uid=fields.needed(request, "uid", "request"),
        operation=fields.text(request, "operation", "request"),
        resource=_resource(request),
        kind=fields.text(fields.needed_mapping(request, "kind", "request"), "kind", "request.kind"),
        namespace=fields.text(request, "namespace", "request"),
        name=fields.text(request, "name", "request") or named(obj),
        user=fields.text(fields.mapping(request, "userInfo", "request"), "username", "request.userInfo"),
        is_dry_run=request.get("dryRun") is True,
        obj=_without_managed_fields(obj),
        old=_without_managed_fields(request.get("oldObject")),
    )


def uid_of(head: bytes) -> str:
    """The `uid` of a review that is not parsed, from its first bytes; empty if no API server wrote them."""
    match = _UID.search(head)
    return match[1].decode() if match else ""


def allowed(uid: str, **more: object) -> JsonObject:
    return _answer({"uid": uid, "allowed": True, **more})


def patched(review: Review, intended: JsonObject, warnings: Sequence[str]) -> JsonObject:
    told: JsonObject = {"warnings": list(warnings)} if warnings else {}
    if operations := verified(cast(JsonObject, review.obj), intended):  # it was read as a pod
        told |= {"patchType": "JSONPatch", "patch": base64.b64encode(orjson.dumps(operations)).decode()}
    return allowed(review.uid, **told)


def denied(uid: str, refusal: Refusal, text: str) -> JsonObject:
    """Refuse a request. An HTTP error would let a pod pass unchanged, or the API server drop the message."""
    code, reason = refusal.value
    return _answer({"uid": uid, "allowed": False, "status": {"code": code, "reason": reason, "message": text}})


def message(errors: Sequence[FieldError]) -> str:
    more = ["and more"] if len(errors) > MOST_ERRORS else []
    return " | ".join([*(str(error) for error in errors[:MOST_ERRORS]), *more])


def _answer(response: JsonObject) -> JsonObject:
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def _without_managed_fields(obj: object) -> object:
    """No one decides by them, and they nest as deep as an author likes; a patch that does not name them keeps them."""
    if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
        return obj
    kept = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {**obj, "metadata": kept}


def _resource(request: JsonObject) -> str:
    resource = fields.needed_mapping(request, "resource", "request")
    plural, group = (fields.text(resource, key, "request.resource") for key in ("resource", "group"))
    subresource = fields.text(request, "subResource", "request")
    return plural + (f"/{subresource}" if subresource else "") + (f".{group}" if group else "")


# Objects.


def pod(value: object) -> JsonObject:
    """A pod whose labels, annotations and containers can be read. Else raises InvalidRequestError, all at once."""
    return _checked(value, pods.POD)


def with_metadata(value: object) -> JsonObject:
    """An object of any kind whose labels and annotations can be read. Raises as `pod`."""
    return _checked(value, pods.ANY_OBJECT)


def named(value: object) -> str:
    """Name of an object for logs; with a `*` if the API server has yet to complete it. Never fails."""
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict):
        return ""
    return str(metadata.get("name") or "") or f"{metadata.get('generateName') or ''}*"


def labels(obj: JsonObject) -> dict[str, str]:
    """All of an object of `pod` or `with_metadata`, however many."""
    return (obj.get("metadata") or {}).get("labels") or {}


def refuse(errors: Iterable[FieldError]) -> None:
    """Raise InvalidRequestError if there are any; of very many only the first are looked for."""
    if found := tuple(itertools.islice(errors, MOST_ERRORS + 1)):
        raise InvalidRequestError(found)


def _checked(value: object, structure: Mapping[str, Any]) -> JsonObject:
    refuse(_error(path, problem) for path, problem in pods.problems(value, "", structure))
    return cast(JsonObject, value)


def _error(path: str, problem: str) -> FieldError:
    field = _INDEX.sub("", path)
    return FieldError(path or "object", problem, f"see kubectl explain {fields.at('pod', field) if field else 'pod'}")


# Patches.


def changes(before: JsonObject, after: JsonObject, path: str = "") -> Iterator[JsonObject]:
    """JSON Patch (RFC 6902) from an object to another one, field by field of it, its metadata, spec and containers.

    What lies deeper is replaced whole: the patch is a little longer, and right without any thought about indices.
    """
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
    for key, new in after.items():
        old, pointer = before.get(key), f"{path}/{_escaped(key)}"
        if key not in before:
            yield {"op": "add", "path": pointer, "value": new}
        elif pointer in {"/metadata", "/spec"} and isinstance(old, dict) and isinstance(new, dict):
            yield from changes(old, new, pointer)  # also of an empty one: its managedFields were left out
        elif pointer in _CONTAINERS and old and new and len(old) == len(new):
            for number, (container, intended) in enumerate(zip(old, new, strict=True)):
                yield from changes(container, intended, f"{pointer}/{number}")
        elif old is not new and old != new:
            yield {"op": "replace", "path": pointer, "value": new}


def verified(before: JsonObject, after: JsonObject) -> list[JsonObject]:
    """Operations from one object to the other, applied here first as the API server will.

    Raises RuntimeError if they give another object: a wrong patch could show a container a GPU.
    """
    operations = list(changes(before, after))
    shared = [{**each, "value": _Shared(each["value"])} if "value" in each else each for each in operations]
    if jsonpatch.JsonPatch(shared).apply(_opened(before), in_place=True) != after:
        raise RuntimeError("the JSON patch does not give the intended object")
    return operations


class _Shared:
    """A value of which the library's copy is the value itself: a large pod would take twice its memory."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __deepcopy__(self, memo: object) -> object:
        return self._value


def _opened(obj: JsonObject) -> JsonObject:
    """The same object with copies of those parts, and no others, that `changes` may change."""
    opened = {**obj, **{key: dict(obj[key]) for key in ("metadata", "spec") if isinstance(obj.get(key), dict)}}
    for pointer in _CONTAINERS:
        key = pointer.rpartition("/")[2]
        if opened["spec"].get(key):
            opened["spec"][key] = [dict(container) for container in opened["spec"][key]]
    return opened


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
