"""Whether new pods pass the webhook, whom labels and policies leave out, and what happens while it is away. Pure."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.model.gpu import HandOver
from gpushare.model.request import Policy
from gpushare.placement.explain import some
from gpushare.wire import fields, hand_over, pods as pods_wire
from gpushare_cli.doctor import objects
from gpushare_cli.doctor.facts import FIRST_WITH_CONDITIONS, Facts, Finding, NothingToCheckError, error, note, warning
from gpushare_cli.doctor.objects import APPLY
from gpushare_cli.doctor.snapshot import TRIAL_CONTAINER, TRIAL_NAMESPACE, Unreadable, read

GPU: Final = "gpu.gpushare.dev"
WHOLE: Final = "whole.gpushare.dev"
LIMIT: Final = "limit.gpushare.dev"
ISOLATION: Final = "isolation.gpushare.dev"
BINDING: Final = "binding.gpushare.dev"
REQUEST: Final = "request.gpushare.dev"
STATUS: Final = "status.gpushare.dev"
SHIPPED: Final[Mapping[bool, Mapping[str, str]]] = {  # with matchConditions or without -> webhook -> failurePolicy
    True: {GPU: "Fail", LIMIT: "Fail", ISOLATION: "Ignore", BINDING: "Fail", REQUEST: "Fail"},
    False: {GPU: "Ignore", LIMIT: "Ignore", BINDING: "Fail", STATUS: "Ignore"},
}
_MUTATING: Final = f"mutatingwebhookconfiguration/{names.MUTATING_WEBHOOK}"
_ALL_CDI: Final = "every node that shares hands GPUs over by CDI"
_PEM: Final = b"-----BEGIN CERTIFICATE-----"
_APPLY_WHOLE: Final = (
    "write ../../whole-gpus/ for ../../gpus/ and ../../servers/ in the overlay, as manifests/README.md says, then:"
    " kubectl apply -k manifests/overlays/OVERLAY"
)
_WITHOUT: Final[Mapping[str, str]] = {  # what happens without a policy of the API server's
    names.ISOLATION_POLICY: "while the webhook is away, a pod with the RuntimeClass nvidia may see every GPU",
    names.AMOUNTS_POLICY: "while the webhook is away, amounts that overflow fit every node",
    names.CDI_POLICY: "annotations of cdi.k8s.io may choose devices past the scheduler",
    names.RUNTIME_CLASS_POLICY: "RuntimeClasses of NVIDIA cannot be refused to pods",
    names.NODES_POLICY: "a device plugin may change every Node",
}
_WATCHDOGS: Final = {"report": "usage", "evict": "watchdog-evict", "kill": "watchdog-kill"}
"""What a watchdog does -> the component of the manifests that has it do so."""
_OF_NAMESPACES: Final = {  # what labels of namespaces may say
    names.LABEL_LIMIT: (names.ENFORCED,),
    names.LABEL_POLICY: tuple(policy.value for policy in Policy),
    names.WATCHDOG: tuple(_WATCHDOGS),
}


def runtime_class(facts: Facts) -> Iterator[Finding]:
    """The RuntimeClass exists that gives GPU pods NVIDIA's runtime, if a node needs that."""
    wanted = facts.settings.runtime_class
    if wanted in facts.runtime_classes or not facts.writes_runtime_class:
        return
    fix = (
        "run nvidia-ctk runtime configure --runtime=containerd (or crio) on the nodes, restart it, then create"
        f" the RuntimeClass {wanted} with the handler it made"
    )
    where = f"runtimeclass/{wanted}"
    if facts.settings.runtime_class_mode == "always":
        yield error(where, "it is missing; the webhook sets it on every GPU pod, so all of them are rejected", fix)
    elif not facts.plugin_setting("gpu_source").startswith(names.SIMULATED):
        yield warning(
            where,
            "it is missing: containers see GPUs only where NVIDIA's is the default runtime, also of all other pods",
            fix,
        )


def namespace_labels(facts: Facts) -> Iterator[Finding]:
    """kube-system, the installation's namespace and those of GPU add-ons have the label by which they are left alone.

    Servers before 1.21 do not set it.
    """
    key = objects.LABEL_NAMESPACE
    for namespace in read(facts.snapshot.namespaces):
        name = objects.name_of(namespace)
        is_excluded = name in {objects.KUBE_SYSTEM, facts.namespace, *names.ADDON_NAMESPACES}
        if is_excluded and objects.label(namespace, key) != name:
            problem = f"it lacks the label {key}={name}, so the webhook does not leave its pods alone"
            yield warning(f"namespace/{name}", problem, f"kubectl label namespace {name} {key}={name}")


def isolation_exceptions(facts: Facts) -> Iterator[Finding]:
    """No namespace but kube-system and the installation's own is excluded from isolation."""
    for namespace in read(facts.snapshot.namespaces):
        name = objects.name_of(namespace)
        if name in names.ADDON_NAMESPACES:
            problem = "its name excludes it, as one of GPU add-ons: its pods may see every GPU of their node"
            fix = "if tenants may create pods there: take the name out of the webhook configuration and the policies"
            yield note(f"namespace/{name}", problem, fix)
        elif objects.label(namespace, names.LABEL_ISOLATION) == "disabled":
            problem = f"the label {names.LABEL_ISOLATION}=disabled excludes it: its pods may see all GPUs of their node"
            fix = f"if that is not meant: kubectl label namespace {name} {names.LABEL_ISOLATION}-"
            yield note(f"namespace/{name}", problem, fix)


def namespace_limits(facts: Facts) -> Iterator[Finding]:
    """Every namespace that asks for a strength of limits, a policy or a watchdog, asks for one that exists."""
    for namespace in read(facts.snapshot.namespaces):
        name = objects.name_of(namespace)
        for label, values in _OF_NAMESPACES.items():
            value = objects.label(namespace, label)
            if value not in {"", *values}:
                problem = f"the label {label}={value} has no effect; only {' or '.join(values)} has one"
                fix = f"kubectl label namespace {name} --overwrite {label}={values[0]}, or {label}-"
                yield warning(f"namespace/{name}", problem, fix)
            elif value and label == names.WATCHDOG and not facts.reads_usage:
                problem = f"the label {label}={value} has no effect: the device plugins do not read what containers use"
                fix = f"add manifests/{_WATCHDOGS[value]} to the overlay, or kubectl label namespace {name} {label}-"
                yield warning(f"namespace/{name}", problem, fix)


def configured(facts: Facts) -> Iterator[Finding]:
    """Both configurations exist and call the installation's webhook."""
    ours = f"{facts.namespace}/{names.WEBHOOK}"
    for where, config in _configurations(facts):
        if config is None:
            yield error(where, "it is missing, so no pod passes the webhook", APPLY)
    for where, webhook in _webhooks(facts):
        service = fields.mapping(fields.mapping(webhook, "clientConfig", "webhook"), "service", "clientConfig")
        called = f"{service.get('namespace')}/{service.get('name')}"
        if called != ours:
            yield error(where, f"{webhook.get('name')} calls {called}, not {ours}", APPLY)


def authority(facts: Facts) -> Iterator[Finding]:
    """The API server was told which certificates to trust."""
    restart = facts.kubectl(f"rollout restart deployment/{names.WEBHOOK}")
    for where, webhook in _webhooks(facts):
        bundle = fields.text(fields.mapping(webhook, "clientConfig", "webhook"), "caBundle", "clientConfig")
        if problem := _bundle_problem(bundle):
            problem = f"the caBundle of {webhook.get('name')} {problem}, so the API server cannot call it"
            fix = f"the webhook writes it at its next check; if it stays: {restart}, and let no other tool write it"
            yield error(where, problem, fix)


def policies(facts: Facts) -> Iterator[Finding]:
    """While the webhook is away, exactly the pods that need it wait, as this server's version allows."""
    shipped = SHIPPED[facts.snapshot.server >= FIRST_WITH_CONDITIONS]
    shipped_for = f"shipped for Kubernetes {facts.snapshot.server}"
    found = {str(webhook.get("name")): (where, webhook) for where, webhook in _webhooks(facts)}
    if not found:
        raise NothingToCheckError("there are no webhooks")
    for name in sorted(shipped.keys() - found.keys() - {ISOLATION}):  # of which another check says if it is needed
        yield warning(f"webhook/{names.MUTATING_WEBHOOK}", f"{name} is not configured, but is {shipped_for}", APPLY)
    for name, (where, webhook) in found.items():
        wanted = "Fail" if name == WHOLE else shipped.get(name, "")
        policy = webhook.get("failurePolicy", "Fail")
        conditions = fields.objects(webhook, "matchConditions", "webhook")
        is_narrow = bool(conditions) or bool(fields.mapping(webhook, "objectSelector", "webhook"))
        if policy == "Fail" and not is_narrow:
            yield error(
                where,
                f"{name} has failurePolicy Fail and no conditions: while the webhook is away, no pod at all can be"
                f" created (servers before {FIRST_WITH_CONDITIONS} need their own overlay)",
                APPLY,
            )
        elif wanted and policy != wanted:
            yield warning(where, f"{name} has failurePolicy {policy}; {wanted} is {shipped_for}", APPLY)
    yield from _conditions(facts, {name: webhook for name, (_, webhook) in found.items()})


def _conditions(facts: Facts, found: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """What conditions lack: of the webhooks that GPU pods need together, and of the one for all others."""
    wanted = facts.settings.resource_config.resources
    # Whole GPUs have a webhook of their own. The one for all other pods passes for them as well, which harms nothing.
    others = [each for each in wanted if each != names.GPU]
    for group, resources in (((WHOLE, GPU), wanted), ((LIMIT,), others), ((ISOLATION,), others)):
        present = [name for name in group if name in found]
        conditions = [fields.objects(found[name], "matchConditions", "webhook") for name in present]
        texts = [" ".join(fields.text(each, "expression", "matchConditions") for each in of) for of in conditions]
        if not all(texts):
            continue  # one without conditions is called for every pod
        unnamed = [resource for resource in resources if not any(resource in text for text in texts)]
        if present and unnamed:
            message = f"the matchConditions of {' and '.join(present)} do not name {', '.join(unnamed)}"
            fix = _APPLY_WHOLE if names.GPU in unnamed else APPLY
            yield error(_MUTATING, f"{message}, so pods that ask for it bypass the webhook", fix)


def admission(facts: Facts) -> Iterator[Finding]:
    """A new pod that asks for one unit comes back as the webhook makes it."""
    where, admitted = f"pod/{TRIAL_NAMESPACE}/gpushare-doctor", facts.snapshot.admitted
    if not isinstance(admitted, Unreadable):
        if lacking := missing(admitted):
            problem = f"a new GPU pod (dry run) comes back without {' and without '.join(lacking)}"
            fix = f"the webhook was not called; the other findings may say why, else: {APPLY}"
            yield error(where, problem, fix)
    elif isinstance(admitted.error, kube.ServerFaultError | kube.BadRequestError):
        logs = facts.kubectl(f"logs deploy/{names.WEBHOOK}")
        yield error(where, f"a new GPU pod (dry run) is refused: {admitted.error}", logs)
    else:
        rights = "get rights to create pods there, or create a GPU pod and look at it"
        fix = rights if isinstance(admitted.error, kube.ForbiddenError) else "try again"
        yield warning(where, f"not checked whether a new GPU pod is completed: {admitted.error}", fix)


def missing(admitted: Mapping[str, Any]) -> list[str]:
    """What the webhook should have written into the trial pod and has not."""
    lacking = []
    if pods_wire.labels(admitted).get(names.LABEL_MANAGED) != "true":
        lacking.append(f"the label {names.LABEL_MANAGED}")
    containers = [container for _, _, container in pods_wire.containers(admitted)]
    if not any(pods_wire.takes_its_grant(container, TRIAL_CONTAINER) for container in containers):
        lacking.append(f"{names.ENV_VISIBLE_DEVICES} from the annotation of its binding")
    return lacking


def server_policies(facts: Facts) -> Iterator[Finding]:
    """The API server itself refuses what would open a way past the webhook."""
    facts.needs_conditions("this server has no such policies")
    parts = {
        "validatingadmissionpolicy": read(facts.snapshot.policies),
        "validatingadmissionpolicybinding": read(facts.snapshot.policy_bindings),
    }
    for kind, items in parts.items():
        present = set(map(objects.name_of, items))
        for name, consequence in _WITHOUT.items():
            if name not in present:
                yield warning(f"{kind}/{name}", f"it is missing: {consequence}", APPLY)


def runtime_class_policy(facts: Facts) -> Iterator[Finding]:
    """RuntimeClasses of NVIDIA are refused under all their names, and no GPU pod for the one that it is given."""
    facts.needs_conditions("this server has no such policies")
    name, part = names.RUNTIME_CLASS_POLICY, facts.snapshot.refused_classes
    config_map = facts.needed("configmap", name, part, f": {_WITHOUT[name]}", warning)
    where = facts.own("configmap", name)
    data = fields.mapping(config_map, "data", names.RUNTIME_CLASS_POLICY)
    word = fields.text(data, "refuse", "data")
    edit = facts.kubectl(f"edit configmap {names.RUNTIME_CLASS_POLICY}")
    if word not in hand_over.REFUSALS:
        choices = " or ".join(hand_over.REFUSALS)
        yield error(where, f"refuse is {word!r:.80}, which counts as always", f"write {choices}: {edit}")
    yield from _unknown_classes(facts, data, edit)
    if conflict := _conflict(facts, config_map):
        problem = f"it refuses RuntimeClass {facts.settings.runtime_class} to all pods, and {conflict}"
        yield error(where, problem, f"write refuse: without-gpus: {edit}")
        return
    has_class = not facts.runtime_classes.keys().isdisjoint(objects.RUNTIME_CLASSES)
    if word in {hand_over.NOTHING, hand_over.WITHOUT_GPUS} and not facts.writes_runtime_class and has_class:
        problem = (
            f"{_ALL_CDI}, so no GPU pod needs a RuntimeClass of NVIDIA, under which a container could choose devices"
        )
        yield note(where, problem, f"refuse it to all pods with refuse: always: {edit}")


def _unknown_classes(facts: Facts, data: JsonObject, edit: str) -> Iterator[Finding]:
    """RuntimeClasses of NVIDIA's runtime under other names than those that the policies look for."""
    listed = {*objects.RUNTIME_CLASSES, *map(str.strip, fields.text(data, "names", "data").split(","))}
    for name, handler in facts.runtime_classes.items():
        if handler.startswith(names.RUNTIME_CLASS) and name not in listed:
            message = f"it uses NVIDIA's runtime (handler {handler}), and no policy looks for it"
            problem = f"{message}: while the webhook is away, a pod that names it may see every GPU"
            fix = f"add it to names: {edit}; and to the match condition of {names.ISOLATION_POLICY} in your overlay"
            yield warning(f"runtimeclass/{name}", problem, fix)


def _conflict(facts: Facts, config_map: JsonObject) -> str:
    """What goes wrong because an administrator refuses the RuntimeClass to all pods; empty if nothing does."""
    if not hand_over.refuses(config_map, facts.settings.runtime_class):
        return ""
    if facts.writes_runtime_class:
        return "the webhook writes it into GPU pods"
    others = [each.name for each in facts.nodes if each.inventory and each.inventory.hand_over is not HandOver.CDI]
    return f"no GPU pod without it can run on {some(others)}" if others else ""


def isolation(facts: Facts) -> Iterator[Finding]:
    """The webhook for pods without GPUs is there as long as a node needs it."""
    facts.needs_conditions("on this server it completes GPU pods as well")
    if (config := read(facts.snapshot.mutating)) is None:
        raise NothingToCheckError("there are no webhooks")
    open_nodes = [node.name for node in facts.nodes if not facts.isolates(node)]
    present = any(each.get("name") == ISOLATION for each in fields.objects(config, "webhooks", "it"))
    if present and facts.nodes and not open_nodes:
        problem = f"{_ALL_CDI}, under another default runtime than NVIDIA's: {ISOLATION} is not needed there"
        fix = "if that holds for nodes with GPUs of other plugins as well, take it out of the webhooks in your overlay"
        yield note(_MUTATING, problem, fix)
    elif not present and open_nodes:
        message = f"{ISOLATION} is not configured, but {some(open_nodes)} would show every GPU"
        yield error(_MUTATING, f"{message} to any container that says {names.ENV_VISIBLE_DEVICES}=all", APPLY)


def _configurations(facts: Facts) -> Iterator[tuple[str, JsonObject | None]]:
    yield _MUTATING, read(facts.snapshot.mutating)
    yield f"validatingwebhookconfiguration/{names.VALIDATING_WEBHOOK}", read(facts.snapshot.validating)


def _webhooks(facts: Facts) -> Iterator[tuple[str, JsonObject]]:
    for where, config in _configurations(facts):
        yield from ((where, webhook) for webhook in fields.objects(config or {}, "webhooks", where))


def _bundle_problem(bundle: str) -> str:
    try:
        text = base64.b64decode(bundle, validate=True)
    except binascii.Error:
        return "is not base64"
    return "" if _PEM in text else "has no PEM certificate" if bundle else "is empty"
