"""Files -> nodes, pods and workloads, or a WireError that names the file, the object in it and the field."""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TextIO

from gpushare import names
from gpushare.cluster import node_records
from gpushare.errors import WireError
from gpushare.wire import fields, interop
from gpushare_cli import yamls

JsonObject = dict[str, Any]

STDIN: Final = "-"
WORKLOADS: Final = frozenset(
    {"Deployment", "ReplicaSet", "StatefulSet", "ReplicationController", "DaemonSet", "Job", "CronJob"}
)
TEMPLATE: Final = "ResourceClaimTemplate"
_CLAIMS: Final = frozenset({"ResourceClaim", TEMPLATE})
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"  # those of Kubernetes' own suffixes
_LONGEST: Final = 58  # Kubernetes cuts a longer base before it adds a suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:  # one object of the input
    where: str  # file, and place in the file if it holds more than one object
    kind: str
    namespace: str  # empty for a Node and a Namespace
    name: str
    value: JsonObject

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    def fail(self, problem: object) -> WireError:
        return WireError(f"{self.where}: {self}: {problem}")

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """An error inside is one of this object."""
        try:
            yield
        except WireError as error:
            raise self.fail(error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:  # all that was read, in the order of the files
    nodes: list[Found] = field(default_factory=list)
    known: list[Found] = field(default_factory=list)  # pods that an API server knows, because they have a uid
    wanted: list[Found] = field(default_factory=list)  # pods and workloads that are still to be created
    namespaces: list[Found] = field(default_factory=list)
    config_maps: list[JsonObject] = field(default_factory=list)  # Aliyun's, of GPUs that must not be used
    claims: list[Found] = field(default_factory=list)  # ResourceClaims, and templates of some
    ignored: Counter[str] = field(default_factory=Counter)  # objects that have nothing to do with GPUs, by kind


def read_file(path: str, stdin: TextIO) -> tuple[str, list[object]]:
    """What errors call a file, and its documents."""
    name = "standard input" if path == STDIN else path
    try:
        text = stdin.read() if path == STDIN else Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise WireError(f"{name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WireError(f"{name}: no text (byte {error.start} is not UTF-8)") from error
    return name, yamls.load_all(text, name)


def collect(files: Iterable[tuple[str, Sequence[object]]]) -> Input:
    """Sort the objects of all files, of which the names and the documents are given."""
    collected, uids = Input(), dict[str, Found]()
    others = {"Node": collected.nodes, "Namespace": collected.namespaces, **dict.fromkeys(_CLAIMS, collected.claims)}
    seen: dict[str, Found] = {}
    for found in (found for file, documents in files for found in _objects(file, documents)):
        match found.kind:
            case "Pod" if _is_known(found):
                collected.known.append(_with_identity(found))
            case kind if kind == "Pod" or kind in WORKLOADS:
                collected.wanted.append(found)
            case "ConfigMap" if node_records.is_unhealthy_list(found.namespace, found.name):
                collected.config_maps.append(found.value)
            case kind if kind in others:
                others[kind].append(found)
            case kind:
                collected.ignored[kind] += 1
                continue
        if (other := seen.setdefault(str(found), found)) is not found:
            raise WireError(f"{found.where}: {found} is there already ({other.where}); rename or remove one")
    for pod in collected.known:  # ledgers are kept by uid
        if (other := uids.setdefault(pod.value["metadata"]["uid"], pod)) is not pod:
            raise pod.fail(f"metadata.uid: that of {other}, too; remove it")
    return collected


def _objects(file: str, documents: Sequence[object]) -> Iterator[Found]:
    there = [(i, document) for i, document in enumerate(documents, start=1) if document is not None]
    if not there:
        raise WireError(
            f"{file}: no object in it; expected manifests, or what kubectl get nodes,pods -A -o yaml prints"
        )
    for i, document in there:
        yield from _flat(document, f"{file}, document {i}" if len(there) > 1 else file)


def _flat(document: object, where: str) -> Iterator[Found]:
    """The object itself, or all objects of a list, also of lists in it."""
    todo: list[tuple[object, str, str]] = [(document, where, "")]
    while todo:
        value, place, kind_of_list = todo.pop()
        if not isinstance(value, dict):
            raise WireError(f"{place}: {fields.mismatch('an object of Kubernetes', value)}")
        item: JsonObject = value
        kind = _kind(item, place, kind_of_list)
        if not kind.endswith("List"):
            yield _found(item, kind, place)
            continue
        items = item.get("items")
        if not isinstance(items, list):
            raise WireError(f"{place}: items: {fields.mismatch('a list', items)}")
        inner = kind.removesuffix("List")  # of a NodeList or PodList, which the API server sends
        todo += [(one, f"{place}, items[{i}]", inner) for i, one in reversed(list(enumerate(items)))]


def _kind(item: JsonObject, where: str, default: str) -> str:
    kind = item.get("kind")
    if isinstance(kind, str) and kind:
        return kind
    if kind is not None:
        raise WireError(f"{where}: kind: {fields.mismatch('a string', kind)}")
    if default:
        return default
    if "gpus" in item:
        raise WireError(f"{where}: this looks like a profile of GPUs; give it with --profile")
    raise WireError(f"{where}: kind: missing; expected an object of Kubernetes")


def _found(item: JsonObject, kind: str, where: str) -> Found:
    if kind not in {*WORKLOADS, *_CLAIMS, "Node", "Namespace", "Pod", "ConfigMap"}:
        return Found(where=where, kind=kind, namespace="", name="", value=item)
    try:
        metadata = fields.mapping(item, "metadata", kind)
        name = fields.text(metadata, "name", "metadata")
        if not name and (start := fields.text(metadata, "generateName", "metadata")):
            name = random_like(start, where)
        name = name or fields.needed(metadata, "name", "metadata")
        namespace = fields.text(metadata, "namespace", "metadata") or "default"
        check_texts(metadata, "metadata")
    except WireError as error:
        raise WireError(f"{where}: {kind}: {error}") from error
    namespace = "" if kind in {"Node", "Namespace"} else namespace
    return Found(where=where, kind=kind, namespace=namespace, name=name, value=item)


def _is_known(pod: Found) -> bool:
    """Whether an API server knows a pod: it has a uid, or was exported without it after it was given GPUs."""
    with pod.named():
        metadata, spec = fields.mapping(pod.value, "metadata", "pod"), fields.mapping(pod.value, "spec", "pod")
        notes = fields.mapping(metadata, "annotations", "metadata")
        was_given = names.ANNOTATION_ALLOCATION in notes or interop.is_bound(notes)
        has_uid = bool(fields.text(metadata, "uid", "metadata"))
        return has_uid or (was_given and bool(fields.text(spec, "nodeName", "spec")))


def _with_identity(pod: Found) -> Found:
    metadata = pod.value["metadata"]
    uid = metadata.get("uid") or f"known:{pod.namespace}/{pod.name}"
    value = {**pod.value, "metadata": {**metadata, "namespace": pod.namespace, "name": pod.name, "uid": uid}}
    return replace(pod, value=value)


def check_texts(metadata: Mapping[str, Any], path: str) -> None:
    """The API server takes texts only where YAML likes to read numbers and truth values."""
    for field_name in ("labels", "annotations"):
        for key, value in fields.mapping(metadata, field_name, path).items():
            if not isinstance(value, str):
                raise WireError(f"{path}.{field_name}[{key}]: {fields.mismatch('a string', value)}; put it in quotes")


def random_like(base: str, seed: str) -> str:
    """The name that Kubernetes would give: a base with five letters behind it, the same in every run."""
    return f"{base[:_LONGEST]}{letters(seed, 5)}"


def letters(seed: str, count: int) -> str:
    """Of those with which Kubernetes makes names unique; the same for the same seed."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:16])
    found = []
    for _ in range(count):
        number, rest = divmod(number, len(_LETTERS))
        found.append(_LETTERS[rest])
    return "".join(found)
