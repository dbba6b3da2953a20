"""What asks by gpu-mem, said in a claim."""

import re
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from gpushare import names
from gpushare.errors import InvalidRequestError
from gpushare.model.request import is_model, model_pattern
from gpushare.units import MemoryUnit, ResourceConfig, binary
from gpushare.wire import claim_templates
from gpushare.wire.claim_templates import Translated

CONFIG = ResourceConfig(whole_gpus=True)
OF = "device.attributes['gpu.gpushare.dev']"
SIZE = "device.capacity['gpu.gpushare.dev'].memory.compareTo(quantity('{}'))"
CARD = f"'type' in {OF} && {OF}.type == 'gpu'"
MIG = CARD.replace("'gpu'", "'mig'")
MEM, CORE, PERCENT, GPU = names.GPU_MEM, names.GPU_CORE, names.GPU_PERCENT, names.GPU
Json = dict[str, Any]


def asking(resource: Any = MEM, amount: Any = 3, name: Any = "main", **more: Any) -> Json:
    return {"name": name, "resources": {"limits": {resource: amount, **more}}}


def pod(*containers: Json, notes: Json | None = None, **spec: object) -> Json:
    return {"metadata": {"annotations": notes or {}}, "spec": {"containers": list(containers or [asking()]), **spec}}


def translated(value: Json, config: ResourceConfig = CONFIG) -> Translated:
    found = claim_templates.translate(value, config)
    assert found is not None
    return found


def exactly(value: Json, config: ResourceConfig = CONFIG) -> list[Json]:
    """What each request says beside its class and count."""
    claim = translated(value, config).template.object()["spec"]["spec"]
    found = []
    for number, request in enumerate(claim["devices"]["requests"]):
        said = request["exactly"]
        assert request["name"] == f"gpu-{number}"
        assert (said.pop("deviceClassName"), said.pop("allocationMode")) == ("gpushare", "ExactCount")
        said["selectors"] = [each["cel"]["expression"] for each in said.get("selectors", [])]
        found.append({**said, "capacity": said.get("capacity", {}).get("requests")})
    return found


def said(*selectors: str, count: int = 1, **capacity: str) -> Json:
    return {"count": count, "capacity": capacity or None, "selectors": list(selectors)}


def selectors(**notes: str) -> list[str]:
    written = {f"gpushare.dev/{key.replace('_', '-')}": value for key, value in notes.items()}
    found: list[str] = exactly(pod(notes=written))[0]["selectors"]
    return found


@pytest.mark.parametrize(
    ("value", "config", "requests"),
    [
        (pod(), CONFIG, [said(memory="3Gi")]),
        (
            pod(asking(amount=3000, **{CORE: 20})),
            ResourceConfig(unit=MemoryUnit(1)),
            [said(memory="3000Mi", compute="20")],
        ),
        (pod(asking(amount=1024)), CONFIG, [said(memory="1Ti")]),  # as the API server spells it
        (pod(notes={names.ANNOTATION_GPUS: "2"}), CONFIG, [said(CARD, count=2, memory="3Gi")]),
        (pod(asking(GPU, 2)), CONFIG, [said(CARD, count=2)]),
        (pod(asking(GPU, 2), notes={names.ANNOTATION_MIG: "only"}), CONFIG, [said(f"{MIG} && {CARD}", count=2)]),
        (pod(asking(GPU, 1), notes={names.ANNOTATION_MIG: "only"}), CONFIG, [said(MIG)]),
        (
            pod(asking(amount=1), {"name": "none"}, asking(amount=2, name="b"), initContainers=[asking(name="init")]),
            CONFIG,
            [said(memory="3Gi"), said(memory="1Gi"), said(memory="2Gi")],
        ),
    ],
)  # fmt: skip
def test_amounts(value: Json, config: ResourceConfig, requests: list[Json]) -> None:
    assert exactly(value, config) == requests


def test_choices_of_gpus_become_selectors() -> None:
    assert selectors(gpu_uuid="GPU-1,!MIG-2") == [
        f"""'uuid' in {OF} && {OF}.uuid in ["GPU-1"] && !({OF}.uuid in ["MIG-2"])"""
    ]
    pattern = r"(?i)(^|[\s_/-])(a100|t4)([\s_/-]|$)".replace("\\", "\\\\")
    assert selectors(gpu_model="A100,T4") == [f"""'productName' in {OF} && {OF}.productName.matches("{pattern}")"""]
    strong = f"""'limit' in {OF} && ({OF}.limit in ["cgroup"] || ({OF}.limit == 'mig' && {SIZE.format("3Gi")} <= 0))"""
    assert selectors(limit="enforced") == [strong]
    everything = selectors(mig="never", min_gpu_memory="16Gi", limit="enforced", gpu_model="!T4", gpu_uuid="!GPU-1")
    assert everything[2:] == [f"{CARD} && {SIZE.format('16Gi')} >= 0 && {strong}"]
    assert selectors(oversubscription="never") == []  # of claims nothing is oversubscribed
    mixed = pod(asking(GPU, 1), asking(name="b"), notes={names.ANNOTATION_LIMIT: "enforced"})
    assert exactly(mixed)[0]["selectors"] == [f"{CARD} && {strong.replace(' && ' + SIZE.format('3Gi') + ' <= 0', '')}"]


WORDS = st.lists(st.sampled_from(["A100", "a100", "10", "T4", "H100.2", "SXM4"]), min_size=1, max_size=3)
SEPARATORS = st.sampled_from([" ", "-", "_", "/", "--"])


@given(WORDS, WORDS, WORDS, SEPARATORS, SEPARATORS)
def test_the_pattern_of_models_means_what_is_meant(
    model: list[str], one: list[str], other: list[str], first: str, second: str
) -> None:
    name, meant = first.join(model), [second.join(one), second.join(other)]
    assert bool(re.search(model_pattern(meant), name)) == any(is_model(name, each) for each in meant)


@pytest.mark.parametrize("key", [names.ANNOTATION_MODEL, names.ANNOTATION_UUID])
@pytest.mark.parametrize("text", ['A") || true || ("', "GPU-1'] || true", "A\\"])
def test_no_annotation_says_anything_else(key: str, text: str) -> None:
    with pytest.raises(InvalidRequestError, match="is none"):
        translated(pod(notes={key: text}))


MANY = ",".join(f"GPU-{number:060}" for number in range(16))


@pytest.mark.parametrize(
    ("value", "field", "fix"),
    [
        (pod(nodeName="a"), "spec.nodeName", "node affinity"),
        (pod(resourceClaims=[{"name": "gpushare"}]), "spec.resourceClaims", "another name"),
        (pod(notes={names.ANNOTATION_SAME_GPU: "a=b"}), "same-gpu-as", "remove it"),
        (pod(notes={names.ANNOTATION_OTHER_GPU: "a=b"}), "other-gpu-than", "remove it"),
        (pod(*(asking(name=f"c{i}") for i in range(5))), "spec.containers", "4 at most"),
        (pod(*(asking(name=f"c{i}") for i in range(2)), notes={names.ANNOTATION_GPUS: "3"}), "containers", "4 at most"),
        (pod(asking(PERCENT, 20)), "spec.containers[0].resources.limits[nano-gpu/gpu-percent]", "aliyun.com/gpu-mem"),
        (pod(notes={names.ANNOTATION_UUID: MANY}), names.ANNOTATION_UUID, "fewer entries"),
    ],
)  # fmt: skip
def test_what_a_claim_cannot_say_is_refused(value: Json, field: str, fix: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        translated(value)
    [error] = refused.value.errors
    assert field in error.path
    assert fix in error.fix


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (pod(notes={names.ANNOTATION_POLICY: "spread"}), [names.ANNOTATION_POLICY]),
        (pod(notes={names.WATCHDOG: "kill", names.ANNOTATION_FRAMEWORK_VARIABLES: "none"}), ["framework"]),
        (pod(priorityClassName="high"), ["priorityClassName"]),
        (pod(runtimeClassName="nvidia"), ["runtimeClassName"]),
        (pod(initContainers=[asking(name="init")]), ["init containers"]),
        (pod({"name": "main"}, initContainers=[asking(name="init")]), []),
        (pod(initContainers=[{**asking(name="side"), "restartPolicy": "Always"}], runtimeClassName="runc"), []),
    ],
)  # fmt: skip
def test_what_is_lost_is_told(value: Json, told: list[str]) -> None:
    found = translated(value)
    assert [word for word, text in zip(told, found.lost, strict=True) if word not in text] == []
    assert all(len(text) <= 256 for text in found.lost)
    assert found.spec.get("runtimeClassName") != "nvidia"


def test_containers_claim_and_keep_all_else() -> None:
    own = {"resources": {"limits": {MEM: 3, "cpu": 1}, "requests": {MEM: 3}, "claims": [{"name": "nic"}]}, "image": "i"}
    found = translated(pod({"name": "main", **own}, {"name": "b"}, resourceClaims=[{"name": "nic"}]))
    mine = {"name": "gpushare", "resourceClaimTemplateName": found.template.name}
    claims = [{"name": "nic"}, {"name": "gpushare", "request": "gpu-0"}]
    assert found.spec == {
        "containers": [
            {"name": "main", "resources": {"limits": {"cpu": 1}, "claims": claims}, "image": "i"},
            {"name": "b"},
        ],
        "resourceClaims": [{"name": "nic"}, mine],
    }
    assert claim_templates.translate(pod({"name": "b"}), CONFIG) is None


def promised(text: object, name: str) -> Json:
    claims = [{"name": "gpushare", "resourceClaimTemplateName": name}]
    return {"metadata": {"annotations": {names.CLAIM_TEMPLATE: text}}, "spec": {"resourceClaims": claims}}


def test_equal_requests_have_one_template_that_its_pod_names() -> None:
    notes = {names.ANNOTATION_MODEL: "T4", names.ANNOTATION_LIMIT: "enforced"}
    template = translated(pod(asking(**{CORE: 100}), asking(name="b"), notes=notes)).template
    other = translated(pod(asking(name="x", **{CORE: 100}), asking(name="y"), notes=notes)).template
    assert template == other
    assert template != translated(pod()).template
    assert re.fullmatch("gpushare-[0-9a-f]{20}", template.name)
    assert claim_templates.of_pod(promised(template.text, template.name)) == template
    assert claim_templates.of_pod(promised(template.text, translated(pod()).template.name)) is None
    assert template.object("team", labels={})["metadata"] == {"name": template.name, "namespace": "team", "labels": {}}


def changed(path: str, value: object) -> str:
    """The spec of a claim with another value in its only request."""
    claim = orjson.loads(translated(pod(notes={names.ANNOTATION_MODEL: "T4"})).template.text)
    place, *keys = [claim["devices"]["requests"][0], *path.split("/")]
    for key in keys[:-1]:
        place = place[int(key)] if key.isdecimal() else place[key]
    place[keys[-1]] = value
    return orjson.dumps(claim, option=orjson.OPT_SORT_KEYS).decode()


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "1", '{"devices":{"requests":[1]}}', 5, "x" * 17_000),
        *(changed("name", "gpu-1"), changed("exactly/adminAccess", True), changed("exactly/tolerations", [])),
        *(changed("exactly/deviceClassName", "other"), changed("exactly/selectors/0/more", 1)),
        changed("exactly/capacity/requestPolicy", {}),
        changed("exactly/count", 2).replace(":", ": "),
    ],
)  # fmt: skip
def test_no_other_spec_is_taken_for_one_that_was_translated(text: object) -> None:
    name = claim_templates.Template(str(text)).name
    assert claim_templates.of_pod(promised(text, name)) is None
    assert claim_templates.of_pod(promised(changed("exactly/count", 2), "x")) is None


@pytest.mark.parametrize(
    ("mib", "text"),
    [(1, "1Mi"), (3072, "3Gi"), (3073, "3073Mi"), (2**20, "1Ti"), (2**30, "1Pi"), (3 * 2**40, "3072Pi")],
)
def test_binary_amounts(mib: int, text: str) -> None:
    assert binary(mib) == text
