"""What a row of the chart's table of values is, and the JSON schemas that its rows share."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

STRING: Final[Json] = {"type": "string"}
BOOLEAN: Final[Json] = {"type": "boolean"}
SECONDS: Final[Json] = {"type": "number", "minimum": 0}
OBJECT: Final[Json] = {"type": "object"}
STRINGS: Final[Json] = {"type": "object", "additionalProperties": STRING}
OBJECTS: Final[Json] = {"type": "array", "items": OBJECT}
NAME: Final[Json] = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
NAMES: Final[Json] = {"type": "array", "items": NAME, "uniqueItems": True}
LEVELS: Final = ("debug", "info", "warning", "error")
COUNT: Final[Json] = {"type": "integer", "minimum": 1}
OWN_LABELS: Final = ("app.kubernetes.io/name", "app.kubernetes.io/part-of")
"""By which Deployments, Services and NetworkPolicies find the pods."""
LABELS: Final[Json] = STRINGS | {"propertyNames": {"not": {"enum": list(OWN_LABELS)}}}
MEMORY_UNIT: Final[Json] = {"type": "string", "pattern": "^([1-9][0-9]*)?(MiB|GiB)$"}


def enum(*values: str) -> Json:
    """One of a few words."""
    return {"type": "string", "enum": list(values)}


def optional(schema: Json) -> Json:
    """Null as well, for what the manifests say."""
    return schema | {"type": [schema["type"], "null"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of the chart."""

    path: str
    """Keys, with points between them."""
    default: Any = None
    schema: Json
    text: str


REGISTRY: Final = r"^([A-Za-z0-9.-]+(:[0-9]+)?|\[[0-9A-Fa-f:]+\](:[0-9]+)?)(/[a-z0-9._/-]*[a-z0-9])?$|^$"
REPOSITORY: Final = r"^[a-z0-9]+([._/-]+[a-z0-9]+)*$"


def image(path: str, repository: str, registry: str, tag: str) -> Iterator[Value]:
    """Where an image comes from."""
    yield Value(
        path=f"{path}.registry",
        default=registry,
        schema={"type": "string", "pattern": REGISTRY},
        text="registry, with its port if it has one",
    )
    yield Value(
        path=f"{path}.repository",
        default=repository,
        schema={"type": "string", "pattern": REPOSITORY},
        text="name of the image in the registry",
    )
    yield Value(
        path=f"{path}.tag",
        default="",
        schema={"type": "string", "pattern": "^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$"},
        text=f"tag; empty: {tag}",
    )
    yield Value(
        path=f"{path}.digest",
        default="",
        schema={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
        text="digest, in the place of the tag",
    )
