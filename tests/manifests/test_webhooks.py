"""Who is called for what: P8 and P9 as far as the API server decides them."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpushare import names
from testing.manifests import tree
from testing.manifests.tree import SERVERS, Json
from tests.manifests import cel
from tests.manifests.cel import CelError

CONTROLLER = f"system:serviceaccount:{names.NAMESPACE}:{names.SERVICE_ACCOUNT_CONTROLLER}"
MANAGED = {names.LABEL_MANAGED: "true"}
RESERVED = [
    *sorted(names.RESERVED_ANNOTATIONS),
    *(f"{prefix}main" for prefix in names.RESERVED_PREFIXES),
]
FIXED = [*names.REQUEST_ANNOTATIONS, *names.WEBHOOK_ANNOTATIONS]
FIXED_LABELS = [names.LABEL_GPU_COUNT, names.NANO_ASSUME]
OURS = [*names.SHARED_RESOURCES, names.GPU_CORE, names.GPU_COUNT]


def webhooks(server: str) -> dict[str, Json]:
    kinds = {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
    configurations = [each for each in tree.listed(f"servers/{server}") if each["kind"] in kinds]
    assert [each["metadata"]["name"] for each in configurations] == [names.MUTATING_WEBHOOK, names.VALIDATING_WEBHOOK]
    return {hook["name"]: hook for each in configurations for hook in each["webhooks"]}


NEW = webhooks("1.30")
BINDING = ["binding.gpushare.dev"]
VALIDATING = [*BINDING, "request.gpushare.dev"]


def called(
    webhook: str,
    obj: Json,
    old: Json | None = None,
    *,
    user: str = "tenant",
    sub: str = "",
    resource: str = "pods",
    hooks: Mapping[str, Json] = NEW,
) -> bool:
    """Whether the API server calls the webhook: its rule fits and all conditions hold."""
    operation = "CREATE" if old is None else "UPDATE"
    path = f"{resource}/{sub}" if sub else resource
    if not any(operation in rule["operations"] and path in rule["resources"] for rule in hooks[webhook]["rules"]):
        return False
    request: Json = {
        "operation": operation,
        "resource": {"group": "", "version": "v1", "resource": resource},
        "userInfo": {"username": user},
    }
    if sub:
        request["subResource"] = sub  # the API server leaves it out where there is none
    variables = {"object": obj, "oldObject": old, "request": request}
    return all(cel.evaluate(each["expression"], variables) for each in hooks[webhook]["matchConditions"])


def pod(
    *containers: Json,
    init: list[Json] | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Json:
    """As the API server stores it: what is empty is not there."""
    metadata = {"annotations": annotations, "labels": labels}
    spec: Json = {"containers": [{"name": "first"}, *containers]}
    if init:
        spec["initContainers"] = init
    return {"metadata": {"name": "p"} | {key: dict(value) for key, value in metadata.items() if value}, "spec": spec}


def asking(resource: str, field: str = "limits") -> Json:
    return {"name": "c", "resources": {field: {"cpu": "1", resource: "3"}}}


@pytest.mark.parametrize("resource", OURS)
@pytest.mark.parametrize("field", ["limits", "requests"])
def test_a_pod_that_names_a_managed_resource_needs_the_webhook(resource: str, field: str) -> None:
    for wanted in (pod(asking(resource, field)), pod(init=[{"name": "i"}, asking(resource, field)])):
        assert called("gpu.gpushare.dev", wanted)
        assert called("limit.gpushare.dev", wanted)
        assert not called("isolation.gpushare.dev", wanted)
    assert NEW["gpu.gpushare.dev"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize(
    "other",
    [
        pod(),
        pod({"name": "c", "resources": {}}),
        pod(asking("memory")),
        pod(asking("nvidia.com/gpu")),
        pod(asking("nvidia.com/mig-1g.5gb"), init=[asking("nvidia.com/gpu", "requests")]),
        pod(asking("aliyun.com/gpu-mem2"), init=[{"name": "i"}]),
        pod(labels={names.LABEL_GPU_COUNT: "2"}, annotations={names.ANNOTATION_GPUS: "2", RESERVED[0]: "x"}),
    ],
)
def test_every_other_pod_is_created_whether_or_not_the_webhook_answers(other: Json) -> None:
    assert [name for name in NEW if called(name, other)] == ["isolation.gpushare.dev"]
    isolation = NEW["isolation.gpushare.dev"]
    assert (isolation["failurePolicy"], isolation["timeoutSeconds"]) == ("Ignore", 2)


def test_ephemeral_containers_are_isolated_too() -> None:
    plain, gpu = pod(), pod(asking(names.GPU_MEM))
    assert called("isolation.gpushare.dev", plain, plain, sub="ephemeralcontainers")
    assert called("gpu.gpushare.dev", gpu, gpu, sub="ephemeralcontainers")
    assert called("limit.gpushare.dev", gpu, gpu, sub="ephemeralcontainers")


@pytest.mark.parametrize("key", RESERVED)
def test_no_reserved_annotation_changes_unseen(key: str) -> None:
    without, with_one, with_two = (pod(annotations=value) for value in ({"x": "y"}, {key: "1", "x": "y"}, {key: "2"}))
    for before, after in (
        (without, with_one),
        (with_one, without),
        (with_one, with_two),
        (pod(), with_one),
        (with_two, pod()),
    ):
        for sub in ("", "status", "ephemeralcontainers", "resize"):
            assert called("binding.gpushare.dev", after, before, sub=sub)
        assert not called("binding.gpushare.dev", after, before, user=CONTROLLER)
    binding = {"metadata": {"name": "p", "annotations": {key: "1"}}, "target": {"name": "node-a"}}
    assert called("binding.gpushare.dev", binding, sub="binding")
    assert called("binding.gpushare.dev", binding, resource="bindings")
    assert not called("binding.gpushare.dev", binding, sub="binding", user=CONTROLLER)
    assert called("binding.gpushare.dev", pod(annotations={key: "1"}, labels=MANAGED))


def test_updates_that_leave_bindings_and_requests_alone_do_not_depend_on_the_webhook() -> None:
    bound = dict.fromkeys([*RESERVED, *FIXED], "1")
    labels = {**MANAGED, **dict.fromkeys(FIXED_LABELS, "2")}
    before = pod(asking(names.GPU_MEM), annotations=bound, labels=labels)
    for after in (
        before,
        pod(asking(names.GPU_MEM), annotations={**bound, "x": "y"}, labels={**labels, "app": "z"}),
    ):
        for sub in ("", "status", "resize"):
            assert [name for name in NEW if called(name, after, before, sub=sub, user="system:node:node-a")] == []
    for plain in (pod(), pod(labels={"app": "x"}), pod(annotations={"x": "y"})):
        assert [name for name in NEW if called(name, plain, pod(), sub="status")] == []


def test_bindings_of_other_schedulers_do_not_depend_on_the_webhook() -> None:
    for metadata in ({"name": "p"}, {"name": "p", "annotations": {"x": "y"}, "labels": {"a": "b"}}):
        binding = {"metadata": metadata, "target": {"name": "node-a"}}
        assert [name for name in NEW if called(name, binding, sub="binding")] == []


def test_no_pod_costs_the_isolation_webhook_more_than_the_other() -> None:
    """What costs an API server too much is refused by the one webhook and passes the other: with `!`, which costs 1, a
    pod that costs exactly what is allowed would pass both. A choice costs nothing."""
    [gpu], [isolation] = (NEW[f"{name}.gpushare.dev"]["matchConditions"] for name in ("gpu", "isolation"))
    assert (NEW["gpu.gpushare.dev"]["failurePolicy"], NEW["isolation.gpushare.dev"]["failurePolicy"]) == (
        "Fail",
        "Ignore",
    )
    assert isolation["expression"] == f"({gpu['expression']}) ? false : true"


def test_so_many_annotations_that_conditions_would_cost_too_much_are_left_to_the_webhook() -> None:
    """An API server gives up a condition that costs more than 1,000,000 and refuses the change: no kubelet could report
    the status of such a pod, and kube-scheduler could not preempt it. It charges 36 for an annotation, old or new."""
    most, more = (pod(annotations={f"a{i}": "" for i in range(count)}) for count in (1000, 1001))
    for sub in ("", "status", "ephemeralcontainers", "resize"):
        assert [name for name in NEW if called(name, most, most, sub=sub) and name in VALIDATING] == []
        for after, before in ((more, more), (more, pod()), (pod(), more)):
            assert [name for name in VALIDATING if called(name, after, before, sub=sub)] == BINDING
    assert [name for name in VALIDATING if called(name, more)] == []
    assert [name for name in VALIDATING if called(name, {"metadata": more["metadata"]}, sub="binding")] == BINDING


def test_devices_by_cdi_are_refused_by_a_policy_and_depend_on_no_webhook() -> None:
    """See test_cdi_policy.py."""
    before, after = pod(), pod(annotations={f"{names.CDI_DOMAIN}/x": "nvidia.com/gpu=0"})
    for sub in ("", "status", "ephemeralcontainers", "resize"):
        assert [name for name in VALIDATING if called(name, after, before, sub=sub)] == []


def test_a_new_pod_that_names_its_own_devices_does_not_come_into_being_without_the_webhook() -> None:
    forged = pod(annotations={f"{names.PREFIX_DEVICES}first": "all"})
    assert [name for name in NEW if called(name, forged)] == ["isolation.gpushare.dev", *BINDING]
    assert NEW["binding.gpushare.dev"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize("key", FIXED)
def test_an_annotation_of_a_request_does_not_change_unseen(key: str) -> None:
    before, after = pod(labels=MANAGED), pod(labels=MANAGED, annotations={key: "2"})
    assert called("request.gpushare.dev", after, before)
    assert called("request.gpushare.dev", before, after)
    assert not called("request.gpushare.dev", after, after)
    assert not called("request.gpushare.dev", pod(annotations={key: "2"}), pod())
    assert called("request.gpushare.dev", {"metadata": {"annotations": {key: "2"}}}, sub="binding")


@pytest.mark.parametrize("key", FIXED_LABELS)
def test_a_label_of_a_request_does_not_change_unseen(key: str) -> None:
    labelled = pod(labels={**MANAGED, key: "2"})
    assert called("request.gpushare.dev", labelled, pod(labels=MANAGED))
    assert called("request.gpushare.dev", pod(labels=MANAGED), labelled)
    assert called("request.gpushare.dev", pod(), pod(labels=MANAGED))
    assert not called("request.gpushare.dev", pod(labels={key: "2"}), pod())


@pytest.mark.parametrize("key", [*FIXED_LABELS, names.LABEL_MANAGED])
def test_a_label_of_a_request_does_not_come_by_a_binding_unseen(key: str) -> None:
    assert called("request.gpushare.dev", {"metadata": {"name": "p", "labels": {key: "2"}}}, sub="binding")
    assert called("request.gpushare.dev", {"metadata": {"name": "p", "labels": {key: "2"}}}, resource="bindings")
    assert not called("request.gpushare.dev", {"metadata": {"name": "p", "labels": {"zone": "a"}}}, sub="binding")


def test_what_the_webhook_itself_writes_on_a_new_pod_calls_it_no_second_time() -> None:
    labels = {**MANAGED, names.NANO_ASSUME: "true"}
    new = pod(asking(names.GPU_PERCENT), annotations=dict.fromkeys(names.WEBHOOK_ANNOTATIONS, "c"), labels=labels)
    assert [name for name in NEW if called(name, new)] == ["gpu.gpushare.dev", "limit.gpushare.dev"]


def test_a_late_binding_by_the_controller_depends_on_no_webhook() -> None:
    before, after = pod(labels=MANAGED), pod(labels=MANAGED, annotations=dict.fromkeys(RESERVED, "x"))
    assert [name for name in NEW if called(name, after, before, user=CONTROLLER)] == []
    assert [name for name in NEW if called(name, after, before)] == ["binding.gpushare.dev"]


LIMIT = "limit.gpushare.dev"
CORE = ["kube-system", names.NAMESPACE]
LEFT_ALONE = [
    {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": [*CORE, *names.ADDON_NAMESPACES],
    },
    {"key": names.LABEL_ISOLATION, "operator": "NotIn", "values": ["disabled"]},
]


@pytest.mark.parametrize("server", SERVERS)
def test_the_installation_and_the_cluster_itself_are_never_asked_about(server: str) -> None:
    for hook in webhooks(server).values():
        [spared, *_] = hook["namespaceSelector"]["matchExpressions"]
        assert (spared["key"], spared["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
        assert spared["values"][:2] == CORE


@pytest.mark.parametrize("server", SERVERS)
def test_gpu_add_ons_of_the_whole_cluster_keep_their_gpus(server: str) -> None:
    """Their pods ask for no GPU. Bindings and requests are guarded there as everywhere else."""
    isolating = ["isolation.gpushare.dev"] if server == "1.30" else ["gpu.gpushare.dev", LIMIT]
    for name, hook in webhooks(server).items():
        expressions = [
            each for each in hook["namespaceSelector"]["matchExpressions"] if each["key"] != names.LABEL_LIMIT
        ]
        assert (expressions == LEFT_ALONE) == (name in isolating)
        assert (expressions == [{**LEFT_ALONE[0], "values": CORE}]) == (name not in isolating)


@pytest.mark.parametrize("server", SERVERS)
def test_gpu_pods_of_a_labelled_namespace_never_pass_without_the_demand_for_a_limit(server: str) -> None:
    """Where no pod is created without both webhooks, both are called; where each may be skipped, exactly one is."""
    hooks = webhooks(server)
    labelled = {"key": names.LABEL_LIMIT, "operator": "In", "values": [names.ENFORCED]}
    asked = {
        name: [each for each in hook["namespaceSelector"]["matchExpressions"] if each["key"] == names.LABEL_LIMIT]
        for name, hook in hooks.items()
    }
    others = [{**labelled, "operator": "NotIn"}] if server != "1.30" else []
    nothing: dict[str, list[Json]] = {key: [] for key in hooks}
    assert asked == {**nothing, LIMIT: [labelled], "gpu.gpushare.dev": others}
    gpu, limit = ({**hooks[name]} for name in ("gpu.gpushare.dev", LIMIT))
    for hook in (gpu, limit):
        del hook["name"], hook["clientConfig"], hook["namespaceSelector"]
    assert limit == gpu


@pytest.mark.parametrize("policy", sorted({*names.POLICIES} - {names.NODES_POLICY}))
def test_the_policies_leave_the_same_namespaces_alone(policy: str) -> None:
    binding = tree.one(tree.objects("servers/1.30"), "ValidatingAdmissionPolicyBinding", policy)["spec"]
    assert (binding["policyName"], binding["validationActions"]) == (policy, ["Deny"])
    assert binding["matchResources"] == {"namespaceSelector": {"matchExpressions": LEFT_ALONE}}


def test_every_policy_is_bound() -> None:
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    for kind in kinds:
        found = [each["metadata"]["name"] for each in tree.objects("servers/1.30") if each["kind"] == kind]
        assert found == list(names.POLICIES)


@pytest.mark.parametrize("server", SERVERS)
def test_every_webhook_leads_to_a_route_of_ours(server: str) -> None:
    for hook in webhooks(server).values():
        service = hook["clientConfig"]["service"]
        assert (service["name"], service["namespace"], service["port"]) == (names.WEBHOOK_SERVICE, names.NAMESPACE, 443)
        assert service["path"] in {"/mutate", "/enforce", "/isolate", "/validate"}
        assert (service["path"] == "/enforce") == (hook["name"] == LIMIT)
        assert "caBundle" not in hook["clientConfig"]  # the webhook's own; applying the manifests again keeps it
        assert hook["sideEffects"] == "None"
        assert hook["admissionReviewVersions"] == ["v1"]


@pytest.mark.parametrize("server", sorted(set(SERVERS) - {"1.30"}))
def test_without_conditions_only_changes_of_managed_pods_depend_on_the_webhook(server: str) -> None:
    hooks = webhooks(server)
    assert not any("matchConditions" in hook for hook in hooks.values())
    strict = {name: hook for name, hook in hooks.items() if hook["failurePolicy"] == "Fail"}
    assert list(strict) == ["binding.gpushare.dev"]
    [hook] = strict.values()
    assert hook["objectSelector"] == {"matchLabels": MANAGED}
    assert [rule["resources"] for rule in hook["rules"]] == [["pods"]]
    assert hooks == webhooks("1.25")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("object.metadata.annotations.exists(k, k == 'x')", "no such key: annotations"),
        ("object.metadata", "a condition must be a bool"),
        ("object.metadata == 'x'", "only values of one type are compared"),
        ("oldObject.metadata == 'x'", "no such key: oldObject"),
        ("'a' == 'a' 'b'", "unexpected"),
        ("(('a' == 'a')", "expected"),
        ("object.metadata.size() == 'a'", "only values of one type are compared"),
        ("object.metadata.name.size() > 1", "no such field"),
        ("object.metadata.name > 1", "is no int"),
        ("object.metadata.length()", "unknown"),
        ("1 < 2", "cannot read"),
        ("!'a'", "is no bool"),
        ("'a' + object.metadata == 'a'", "is no string"),
        ("quantity('1x').isGreaterThan(quantity('0'))", "no quantity"),
        ("size(object) == 'a'", "unknown"),
        ("object.metadata.name.orValue('a') == 'a'", "is not optional"),
        ("object.metadata.?name == 'a'", "only values of one type are compared"),
    ],
)
def test_the_evaluator_of_these_tests_is_strict(expression: str, message: str) -> None:
    variables: dict[str, Any] = {"object": {"metadata": {"name": "p"}}}
    with pytest.raises(CelError, match=message):
        cel.evaluate(expression, variables)
