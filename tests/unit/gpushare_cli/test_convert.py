"""`gpushare convert`: what it changes in manifests, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare import names
from gpushare.units import ResourceConfig
from gpushare.wire import claim_templates
from testing.builders import make_container
from testing.cli.calling import Run

Json = dict[str, Any]


def pod_spec(**more: object) -> Json:
    return {"containers": [make_container("main", 3)], **more}


def workload(kind: str, template: Json, name: str = "web", **metadata: str) -> Json:
    spec = {"template": template}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    return {"kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def write(path: Path, *documents: object) -> str:
    (path / "in.yaml").write_text(yaml.safe_dump_all(documents))
    return str(path / "in.yaml")


def claiming(spec: Json, **notes: str) -> Json:
    found = claim_templates.translate({"metadata": {"annotations": notes}, "spec": spec}, ResourceConfig(), "gpu-mem")
    assert found is not None
    return found.spec


def template(namespace: str = "", **notes: str) -> Json:
    asking = {"metadata": {"annotations": notes}, "spec": pod_spec()}
    found = claim_templates.translate(asking, ResourceConfig(), "gpu-mem")
    assert found is not None
    return found.template.object(namespace)


def test_templates_come_once_before_what_names_them_and_all_else_is_kept(tmp_path: Path, run: Run) -> None:
    notes = {names.ANNOTATION_MODEL: "T4"}
    service = {"kind": "Service", "metadata": {"name": "web"}, "spec": {"template": "no pod's"}}
    metadata = {"annotations": {**notes, names.ANNOTATION_POLICY: "spread", "a": "b"}, "labels": {"app": "web"}}
    deployed = workload("Deployment", {"metadata": metadata, "spec": pod_spec(schedulerName="gpushare-scheduler")})
    nightly = workload("CronJob", {"spec": pod_spec()}, namespace="team")
    pod = {"kind": "Pod", "metadata": {"name": "p", "namespace": "team", "annotations": notes}, "spec": pod_spec()}
    listed = {"kind": "List", "items": [nightly, workload("Job", {"spec": {"containers": [{"name": "none"}]}})]}
    code, out, err = run("convert", write(tmp_path, service, deployed, None, listed, nightly, pod))
    first, *rest = list(yaml.safe_load_all(out))
    kept = {"labels": {"app": "web"}, "annotations": {"a": "b"}}
    converted = workload("CronJob", {"spec": claiming(pod_spec())}, namespace="team")
    assert (code, first) == (0, service)
    assert rest == [
        template(**notes),
        workload("Deployment", {"metadata": kept, "spec": claiming(pod_spec(), **notes)}),
        template("team"),
        {"kind": "List", "items": [converted, listed["items"][1]]},
        converted,
        template("team", **notes),
        {
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "team", "annotations": {}},
            "spec": claiming(pod_spec(), **notes),
        },
    ]
    for told in ("document 2: Deployment web: gpushare.dev/gpu-policy", "spec.template.spec.schedulerName", "Quota"):
        assert told in err


def test_all_that_cannot_be_said_is_told_and_nothing_printed(tmp_path: Path, run: Run) -> None:
    shared = {"metadata": {"annotations": {names.ANNOTATION_SAME_GPU: "a=b"}}, "spec": pod_spec()}
    files = write(tmp_path, workload("Job", shared), workload("StatefulSet", {"spec": pod_spec(nodeName="a")}, "db"))
    code, out, err = run("convert", files)
    assert (code, out) == (1, "")
    assert "StatefulSet db: spec.template.spec.nodeName: " in err
    assert f"Job web: spec.template.metadata.annotations[{names.ANNOTATION_SAME_GPU}]: " in err


@pytest.mark.parametrize(
    ("document", "code", "told"),
    [
        (workload("Job", {"spec": {"containers": [{"name": "none"}]}}), 0, "nothing is changed"),
        ({"kind": "Job", "metadata": {"name": "odd"}}, 0, "nothing is changed"),
        ({"kind": "AllowList"}, 0, "nothing is changed"),
        (workload("Job", {"spec": {"containers": 1}}), 1, "Job web: spec.template.spec.containers: expected a list"),
        ([], 1, "expected an object"),
    ],
)
def test_what_asks_for_no_gpu_is_printed_as_it_is(
    tmp_path: Path, run: Run, document: object, code: int, told: str
) -> None:
    found, out, err = run("convert", write(tmp_path, document))
    assert (found, told in err) == (code, True)
    assert out == "" if code else yaml.safe_load(out) == document


def test_units_and_whole_gpus_are_those_of_the_cluster(tmp_path: Path, run: Run) -> None:
    spec = {"containers": [make_container("main", 3), {"name": "b", "resources": {"limits": {names.GPU: 1}}}]}
    code, out, _ = run(
        "convert", "--memory-unit", "256MiB", "--whole-gpus", write(tmp_path, {"kind": "Pod", "spec": spec})
    )
    [made, _] = yaml.safe_load_all(out)
    requests = [each["exactly"] for each in made["spec"]["spec"]["devices"]["requests"]]
    assert (code, [each.get("capacity") for each in requests]) == (0, [{"requests": {"memory": "768Mi"}}, None])
