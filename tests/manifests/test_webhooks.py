"""Who is called for what: P8 and P9 as far as the API server decides them."""

import json
import re

import pytest

from gpushare import names
from testing.manifests import helm, tree
from testing.manifests.tree import SERVERS, Json
from webhook.settings import Settings

CONTROLLER = Settings().controller


def webhooks(server: str) -> dict[str, Json]:
    kinds = {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
    configurations = [each for each in tree.listed(f"servers/{server}") if each["kind"] in kinds]
    assert [each["metadata"]["name"] for each in configurations] == [names.MUTATING_WEBHOOK, names.VALIDATING_WEBHOOK]
    return {hook["name"]: hook for each in configurations for hook in each["webhooks"]}


NEW = webhooks("1.30")
CHANGES = ["CREATE", "UPDATE", "pods", ""]
GUARDED = ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]
BOUND = ["pods/binding", "bindings"]


@pytest.mark.parametrize(
    ("webhook", "known"),
    [
        ("gpu", {*names.SHARED_RESOURCES, names.GPU_CORE, names.GPU_COUNT}),
        ("binding", {*CHANGES, *names.RESERVED_ANNOTATIONS, *names.RESERVED_PREFIXES}),
        (
            "request",
            {"CREATE", "", *names.REQUEST_ANNOTATIONS, *names.WEBHOOK_ANNOTATIONS}
            | {names.LABEL_GPU_COUNT, names.NANO_ASSUME},
        ),
    ],
)
def test_conditions_spell_every_name(webhook: str, known: set[str]) -> None:
    """See tests/apiserver/test_asked_webhooks.py for what they do."""
    *first, last = NEW[f"{webhook}.gpushare.dev"]["matchConditions"]
    spelled = set(re.findall(r"'([^']*)'", " ".join(each["expression"] for each in (*first, last))))
    assert spelled - {CONTROLLER, names.LABEL_MANAGED} == known
    assert ({CONTROLLER, names.LABEL_MANAGED} <= spelled) == bool(first)


def test_only_isolation_is_done_without() -> None:
    found = {
        name.partition(".")[0]: (
            hook["failurePolicy"],
            hook["timeoutSeconds"],
            [(each["operations"], each["resources"]) for each in hook["rules"]],
        )
        for name, hook in NEW.items()
    }
    new = [(["CREATE"], ["pods"]), (["UPDATE"], ["pods/ephemeralcontainers"])]
    assert found == {
        "gpu": ("Fail", 10, new),
        "limit": ("Fail", 10, new),
        "isolation": ("Ignore", 2, new),
        "binding": ("Fail", 5, [(["UPDATE"], GUARDED), (["CREATE"], ["pods", *BOUND])]),
        "request": ("Fail", 5, [(["UPDATE"], GUARDED), (["CREATE"], BOUND)]),
    }


def test_no_pod_costs_the_isolation_webhook_more_than_the_other() -> None:
    """What costs an API server too much is refused by the one webhook and passes the other: with `!`, which costs 1, a
    pod that costs exactly what is allowed would pass both. A choice costs nothing."""
    [gpu], [isolation] = (NEW[f"{name}.gpushare.dev"]["matchConditions"] for name in ("gpu", "isolation"))
    assert isolation["expression"] == f"({gpu['expression']}) ? false : true"


LIMIT = "limit.gpushare.dev"
CORE = ["kube-system", names.NAMESPACE]
LEFT_ALONE = [
    {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [*CORE, *names.ADDON_NAMESPACES]},
    {"key": names.LABEL_ISOLATION, "operator": "NotIn", "values": ["disabled"]},
]


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


@pytest.mark.parametrize("whole", [False, True])
def test_in_a_namespace_that_shares_by_claims_one_webhook_translates_and_no_other_is_called(whole: bool) -> None:
    def hooks(translate: bool) -> dict[str, Json]:
        dra = {"enabled": True, "translate": translate}
        found = helm.objects(kubeVersion="1.36.0", dra=dra, wholeGpus=whole)
        [made] = (each for each in found if each["kind"] == "MutatingWebhookConfiguration")
        return {hook["name"].partition(".")[0]: hook for hook in made["webhooks"]}

    before, now = hooks(translate=False), hooks(translate=True)
    by_claims = {"key": names.LABEL_SHARE_BY, "operator": "In", "values": [names.CLAIMS]}
    for name, hook in before.items():
        keys = hook["namespaceSelector"]["matchExpressions"]
        if name != "isolation":
            keys.append({**by_claims, "operator": "NotIn"})
        assert now.pop(name) == hook
    core = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": CORE}
    for name, operator in (("claim", "NotIn"), ("claim-enforced", "In")):
        hook, like = now.pop(name), before["gpu"]
        enforced = {"key": names.LABEL_LIMIT, "operator": operator, "values": [names.ENFORCED]}
        assert hook["namespaceSelector"]["matchExpressions"] == [core, by_claims, enforced]
        assert hook["clientConfig"]["service"]["path"] == f"/{name}"
        asked = str(hook["matchConditions"])
        assert (f"'{names.GPU}'" in asked, f"'{names.GPU_MEM}'" in asked) == (whole, True)
        own = {"name", "clientConfig", "namespaceSelector", *(["matchConditions"] if whole else [])}
        assert [key for key in hook if key not in own and hook[key] != like[key]] == []
    assert now == {}


@pytest.mark.parametrize("policy", sorted({*names.POLICIES} - {names.NODES_POLICY}))
def test_the_policies_leave_the_same_namespaces_alone(policy: str) -> None:
    binding = tree.one(tree.objects("servers/1.30"), "ValidatingAdmissionPolicyBinding", policy)["spec"]
    assert (binding["policyName"], binding["validationActions"]) == (policy, ["Deny"])
    assert binding["matchResources"] == {"namespaceSelector": {"matchExpressions": LEFT_ALONE}}


def test_the_isolation_policy_leaves_the_resources_to_other_plugins_that_the_webhook_leaves() -> None:
    def named(**settings: str) -> tuple[set[str], set[str]]:
        found = helm.objects(kubeVersion="1.36.0", webhook={"settings": settings})
        text = json.dumps(tree.one(found, "ValidatingAdmissionPolicy", names.ISOLATION_POLICY))
        return set(re.findall(r"r == '([^']+)'", text)), set(re.findall(r"r\.startsWith\('([^']+)'\)", text))

    exact, beginnings = named()
    assert exact | {f"{each}*" for each in beginnings} == {*names.PLUGIN_RESOURCES}
    assert named(foreignResources="a.io/gpu, b.io/gpu-*") == ({"a.io/gpu"}, {"b.io/gpu-"})
    assert named(foreignResources="") == (set(), set())


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
    assert hook["objectSelector"] == {"matchLabels": {names.LABEL_MANAGED: "true"}}
    assert [rule["resources"] for rule in hook["rules"]] == [["pods"]]
    assert hooks == webhooks("1.25")
