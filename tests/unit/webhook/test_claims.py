"""Pods that ask by gpu-mem in a namespace that shares by claims."""

from dataclasses import replace

from gpushare import names
from gpushare.wire import claim_templates
from testing.reviews import ALL, RULES, VOID, admitted, asking, container, mutated, pod, refusals, review, warnings
from tests.unit.webhook.conftest import Webhook
from webhook import mutation

CLAIMS = replace(RULES, claims=True)
POLICY = {names.ANNOTATION_POLICY: "spread"}


def test_a_share_becomes_a_claim_and_the_scheduler_and_other_containers_are_as_always() -> None:
    value = pod(asking(mem=3) | {"env": [ALL]}, container("b", env=[ALL]), annotations=POLICY, labels={"app": "web"})
    found = admitted(value, CLAIMS)
    translated = claim_templates.translate(value, CLAIMS.resource_config)
    assert translated is not None
    template = translated.template
    claiming = {"name": "a", "image": "cuda", "resources": {"claims": [{"name": "gpushare", "request": "gpu-0"}]}}
    assert found.pod["spec"] == {
        "containers": [{**claiming, "env": [VOID]}, container("b", env=[VOID])],
        "resourceClaims": [{"name": "gpushare", "resourceClaimTemplateName": template.name}],
    }
    assert found.pod["metadata"]["annotations"] == {**POLICY, names.CLAIM_TEMPLATE: template.text}
    assert found.pod["metadata"]["labels"] == {"app": "web", names.CLAIM_TEMPLATE: template.name}
    taken, of_b, *lost = found.warnings
    assert "set by gpushare to the GPUs that it is granted; 'all' was removed" in taken
    assert "it asks for none" in of_b
    assert lost == translated.lost != []
    for rules in (CLAIMS, RULES):  # called again, and by the webhook for pods without a request
        assert mutation.mutate(found.pod, rules) is None


def test_what_means_nothing_is_told_as_of_a_share() -> None:
    [told] = warnings(pod(asking(mem=3), annotations={"gpushare.dev/gpu-modell": "T4"}), CLAIMS)
    assert "do you mean gpushare.dev/gpu-model?" in told


def test_no_author_writes_the_promise_of_a_template() -> None:
    claims = [{"name": "gpushare", "resourceClaimTemplateName": "gpushare-x"}]
    forged = pod(container(env=[VOID]), annotations={names.CLAIM_TEMPLATE: '{"devices":{}}'}, resourceClaims=claims)
    assert mutated(forged)["metadata"]["annotations"] == {}
    assert "only gpushare-webhook may write it: gpushare.dev/claim-template" in warnings(forged)[0]
    asked = pod(asking(mem=3), annotations={names.CLAIM_TEMPLATE: "x"})
    assert mutated(asked, CLAIMS)["metadata"]["annotations"][names.CLAIM_TEMPLATE] != "x"


def test_what_a_claim_cannot_say_is_refused_with_all_that_is_wrong() -> None:
    [error] = refusals(pod(asking(percent=20)), CLAIMS)
    assert error.startswith("spec.containers[0].resources.limits[nano-gpu/gpu-percent]: a claim asks for bytes")
    assert "asks for nothing" in refusals(pod(asking(mem=0)), CLAIMS)[0]


def test_namespaces_that_share_by_claims_have_paths_of_their_own(webhook: Webhook) -> None:
    plain, enforced = (
        webhook.admit(path, review(pod(asking(mem=3))))["metadata"]["annotations"]
        for path in ("/claim", "/claim-enforced")
    )
    assert ("limit" in plain[names.CLAIM_TEMPLATE], "limit" in enforced[names.CLAIM_TEMPLATE]) == (False, True)
    assert enforced[names.ANNOTATION_LIMIT] == names.ENFORCED
