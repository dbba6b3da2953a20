"""Pods as queues, other schedulers, workflows, training and serving make them: what `docs/neighbours` promises."""

import base64
import contextlib
import json
import ssl
import urllib.parse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from certs import authority
from gpushare import names
from localcluster.cluster import BUSYBOX_IMAGE
from testing.fakes import http_server
from tests.e2e import checks
from tests.e2e.checks import NOTHING, seen_by
from tests.e2e.system import Json, System, make_pod

ALL: Final[Json] = {"env": [{"name": names.ENV_VISIBLE_DEVICES, "value": "all"}]}
END: Final = ["sh", "-c", "/print-devices; env | sort"]


def container(name: str, gib: int | None = None, **fields: Any) -> Json:
    """One that prints what it sees; without `gib` one whose author would see all GPUs."""
    limits = {} if gib is None else {"resources": {"limits": {names.GPU_MEM: gib}}}
    return {"name": name, "image": BUSYBOX_IMAGE, **(ALL if gib is None else {}), **limits, **fields}


def workflow_step() -> Json:
    """Argo: `init` brings the executor, which then runs the author's command in `main`; `wait` saves its results.

    The label stands in the template's metadata.
    """
    mount: Json = {"volumeMounts": [{"name": "var-run-argo", "mountPath": "/var/run/argo"}]}
    executor = "/var/run/argo/argoexec"
    bring = f"""printf '#!/bin/sh\\nshift 2\\nexec "$@"\\n' > {executor}; chmod 755 {executor}; {END[2]}"""
    document = make_pod(
        "steps-train-1234567890",
        annotations={"kubectl.kubernetes.io/default-container": "main"},
        restartPolicy="Never",
        initContainers=[container("init", command=["sh", "-c", bring], **mount)],
        volumes=[{"name": "var-run-argo", "emptyDir": {}}],
    )
    document["spec"]["containers"] = [
        container("wait", **mount),
        container("main", 4, command=[executor, "emissary", "--", "/print-environment"], **mount),
        container("watcher", **mount),
    ]
    document["metadata"]["labels"] = {"workflows.argoproj.io/workflow": "steps", names.LABEL_GPU_COUNT: "2"}
    return document


def test_only_the_container_that_asked_gets_a_gpu(system: System, namespace: str) -> None:
    """Argo's pod has all that those of training and serving have: an init container, and others beside the author's."""
    [found] = checks.run_and_see_their_gpus(system, namespace, workflow_step())
    assert granted(found) == {"main": (2, "2048")}
    assert seen_by(system.environments(namespace)[found["metadata"]["name"], "init"]) == NOTHING


def granted(found: Json) -> dict[str, tuple[int, str]]:
    """Container -> number of GPUs, and MiB on each."""
    notes, prefix = found["metadata"]["annotations"], names.PREFIX_DEVICES
    return {
        key.removeprefix(prefix): (len(value.split(",")), notes[names.PREFIX_MEMORY + key.removeprefix(prefix)])
        for key, value in notes.items()
        if key.startswith(prefix)
    }


LABEL: Final = "gpushare.test/inject"
CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


def adding(spec: Json, added: Json) -> list[Json]:
    return [
        {"op": "add", "path": f"/spec/{field}", "value": [*spec.get(field, []), *containers]}
        for field, containers in added.items()
    ]


@contextlib.contextmanager
def injecting(system: System, namespace: str, directory: Path, specs: Mapping[str, Json]) -> Iterator[None]:
    """Webhooks of other projects, which add containers; the API server calls them in the order of their names.

    Args:
        system: whose API server calls.
        namespace: of the pods.
        directory: for the certificate.
        specs: by the name of the MutatingWebhookConfiguration: lists of containers by their field.
    """

    class Handler(http_server.Handler):
        def do_POST(self) -> None:
            request = json.loads(self.body())["request"]
            added = specs[urllib.parse.urlsplit(self.path).path[1:]]
            patch = base64.b64encode(json.dumps(adding(request["object"]["spec"], added)).encode())
            response = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch.decode()}
            review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
            self.send(200, json.dumps(review).encode())

    host, now, life = system.cluster.plan.host_ip, datetime.now(UTC), timedelta(hours=1)
    ca = authority.make_ca(now=now, life=life)
    leaf = authority.make_leaf(ca, names=frozenset({host}), now=now, life=life)
    (directory / "tls.pem").write_bytes(leaf.certificate + leaf.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "tls.pem")
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    with http_server.serving(Handler, context=context, host=host) as url:
        system.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {LABEL: namespace}}})
        for name in specs:
            hook = {
                "name": f"{name}.gpushare.test",
                "clientConfig": {"url": f"{url}/{name}", "caBundle": base64.b64encode(ca.certificate).decode()},
                "rules": [rule],
                "namespaceSelector": {"matchLabels": {LABEL: namespace}},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
            system.api.create(CONFIGURATIONS, {"metadata": {"name": name}, "webhooks": [hook]})
        try:
            yield
        finally:
            for name in specs:
                system.api.delete(f"{CONFIGURATIONS}/{name}")


def test_containers_that_other_webhooks_add_see_what_they_asked_for(
    system: System, namespace: str, tmp_path: Path
) -> None:
    """One webhook is called before ours, and may ask for a GPU; one after it, whose author wants all GPUs."""
    mesh = {"initContainers": [container("istio-init", command=END)], "containers": [container("istio-proxy")]}
    specs: dict[str, Json] = {"agent-injector": {"containers": [container("agent", 1)]}, "istio-sidecar-injector": mesh}
    assert min(specs) < names.MUTATING_WEBHOOK < max(specs)
    documents = [make_pod("meshed", 3), make_pod("plain", None)]

    def both_called() -> bool:
        made = system.admitted(namespace, documents[0])
        return {"agent", "istio-proxy"} <= {each["name"] for each in made["spec"]["containers"]}

    with injecting(system, namespace, tmp_path, specs):
        system.eventually("both are called", both_called)
        system.create_complete(namespace, *documents)
    pods = system.running(namespace, "meshed", "plain")
    assert [len(each["spec"]["containers"]) for each in pods] == [3, 3]
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    assert seen_by(system.environments(namespace)["meshed", "istio-init"]) == NOTHING
    assert [granted(each).keys() for each in pods] == [{"agent", "c0"}, {"agent"}]
