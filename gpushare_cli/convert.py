"""`gpushare convert`: manifests whose pods ask by gpu-mem -> the same with claims, and the templates of these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpushare import names, units
from gpushare.errors import InvalidRequestError, WireError
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import claim_templates, fields
from gpushare.wire.fields import JsonObject
from gpushare_cli import arguments, yamls
from gpushare_cli.arguments import Call, Command, argument, switch
from gpushare_cli.console import FAILED, OK
from gpushare_cli.simulate import objects

_POD_OF: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(objects.WORKLOADS, ("spec", "template")),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "Pod": (),
}
_READ: Final = {*names.REQUEST_ANNOTATIONS, names.ANNOTATION_TOTALS, names.ANNOTATION_FRAMEWORK_VARIABLES}
_ALWAYS: Final = (
    f"these pods no longer count in a ResourceQuota of {names.GPU_MEM}; one of"
    f" {names.DEVICE_CLASS}.deviceclass.resource.k8s.io/devices counts GPUs, however little is claimed of each",
    "their containers no longer have the variables ALIYUN_COM_GPU_MEM_*",
)
_PREFIX: Final = "gpu-mem"  # of templates' names
_NOTHING: Final = ("no pod asks for a GPU by gpu-mem; nothing is changed",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    files: Sequence[str] = argument(nargs="+", metavar="FILE", help="manifests; - for the standard input")
    memory_unit: MemoryUnit | None = arguments.memory_unit(units.GIB.name)
    whole_gpus: bool = switch("--whole-gpus", what=f"{names.GPU} is gpushare's, not another plugin's")


@dataclass(kw_only=True)
class _Conversion:
    resource_config: ResourceConfig
    templates: dict[tuple[str, str], JsonObject] = field(default_factory=dict)  # by namespace and name
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def converted(self, value: object, where: str) -> JsonObject:
        """An object with claims; `templates` has theirs then."""
        found = fields.an_object(value, where)
        kind = fields.text(found, "kind", where)
        if kind.endswith("List") and "items" in found:
            items = fields.needed_array(found, "items", where)
            return {**found, "items": [self.converted(each, f"{where}, items[{i}]") for i, each in enumerate(items)]}
        if (path := _POD_OF.get(kind)) is None:
            return found
        metadata = fields.mapping(found, "metadata", where)
        namespace, name = (fields.text(metadata, key, f"{where}: metadata") for key in ("namespace", "name"))
        return self._below(found, path, namespace, f"{where}: {kind} {name}: ")

    def _below(self, value: JsonObject, path: Sequence[str], namespace: str, who: str) -> JsonObject:
        """The object with another pod, or template of pods, at this path."""
        if path:
            key, *rest = path
            inner = fields.mapping(value, key, who.rstrip(":. "))
            return {**value, key: self._below(inner, rest, namespace, f"{who}{key}.")} if inner else value
        try:
            metadata = fields.mapping(value, "metadata", "pod")
            found = claim_templates.translate({**value, "metadata": metadata}, self.resource_config, _PREFIX)
        except InvalidRequestError as error:
            self.errors += [f"{who}{each}" for each in error.errors]
            return value
        except WireError as error:
            raise WireError(f"{who}{error}") from error
        if found is None:
            return value
        self.templates.setdefault((namespace, found.template.name), found.template.object(namespace))
        self.notes += [f"{who.rpartition(': ')[0]}: {each}" for each in found.lost]
        if found.spec.get("schedulerName") == names.SCHEDULER:
            del found.spec["schedulerName"]
            self.notes.append(f"{who}spec.schedulerName is removed: {names.SCHEDULER} allocates no claims")
        if notes := metadata.get("annotations"):
            metadata = {**metadata, "annotations": {key: each for key, each in notes.items() if key not in _READ}}
        return {**value, **({"metadata": metadata} if metadata else {}), "spec": found.spec}


def _run(call: Call) -> int:
    options, documents = call.options(Options), list[JsonObject]()
    unit = options.memory_unit or units.GIB
    conversion = _Conversion(resource_config=ResourceConfig(unit=unit, whole_gpus=options.whole_gpus))
    for file in options.files:
        name, found = objects.read_file(file, call.stdin)
        for number, document in enumerate(found, start=1):
            if document is not None:
                before = len(conversion.templates)
                one = conversion.converted(document, f"{name}, document {number}" if len(found) > 1 else name)
                documents += [*list(conversion.templates.values())[before:], one]
    for error in conversion.errors:
        call.streams.error(error)
    if conversion.errors:
        return FAILED
    call.streams.out.write("---\n".join(map(yamls.dump, documents)))
    call.streams.note(*conversion.notes, *(_ALWAYS if conversion.templates else _NOTHING))
    return OK


COMMAND: Final = Command(
    name="convert",
    what="gpu-mem in manifests into claims",
    description="Print manifests whose pods ask for GPUs by aliyun.com/gpu-mem with ResourceClaims instead (Kubernetes"
    " 1.36), each ResourceClaimTemplate before what names it. Nothing but the files is read. What is lost is told on"
    " the standard error; comments in the files are not kept.",
    exit_codes="done; 1 something cannot be said by a claim, or a file cannot be read; 2 wrong arguments.",
    examples=(
        ("See what would change", "gpushare convert deployment.yaml | diff deployment.yaml -"),
        ("What a chart makes", "helm template web ./web | gpushare convert - > claims.yaml"),
    ),
    options=Options,
    of_cluster=False,
    run=_run,
)
