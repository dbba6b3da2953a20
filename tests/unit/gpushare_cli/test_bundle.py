"""`gpushare report`: what is in the file, and what must never be."""

import errno
import io
import json
import os
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import Reply
from gpushare_cli import bundle, console
from gpushare_cli.bundle import Options
from gpushare_cli.console import Streams
from testing.builders import Json, make_grant
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import NS, DoctorKube
from testing.cli.podding import bound
from testing.tenant.changes import forged_events
from tests.unit.gpushare_cli.clusters import unhealthy_gpus
from tests.unit.gpushare_cli.findings import Told

CANARY = "canary-7f3a"


def called(api: DoctorKube, path: Path, err: io.StringIO | None = None, **options: Any) -> int:
    streams = Streams(out=io.StringIO(), err=err or io.StringIO())
    asked = Options(file=str(path), **options)
    return console.answered(streams, lambda: bundle.run(api, streams, asked, world.skewed()))


def made(api: DoctorKube, tmp_path: Path, **options: Any) -> tuple[int, dict[str, str], str]:
    """Exit code, the files of the report, and what was said."""
    err, path = io.StringIO(), tmp_path / "report.tar.gz"
    code = called(api, path, err, **options)
    if not path.exists():
        return code, {}, err.getvalue()
    with tarfile.open(path) as archive:
        files = {each.name: archive.extractfile(each).read().decode() for each in archive}  # type: ignore[union-attr]
    return code, {name.removeprefix("gpushare-report/"): text for name, text in files.items()}, err.getvalue()


def with_secrets(pod: Json) -> Json:
    """A pod that has something confidential wherever its author may write it."""
    container = pod["spec"]["containers"][0]
    container.setdefault("env", []).append({"name": "TOKEN", "value": CANARY})
    container |= {"command": ["run", f"--key={CANARY}"], "args": [CANARY], "workingDir": f"/{CANARY}"}
    container |= {"lifecycle": {"postStart": {"exec": {"command": [CANARY]}}}, "volumeMounts": [{"name": CANARY}]}
    container["livenessProbe"] = {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": CANARY}]}}
    pod["spec"] |= {"volumes": [{"name": CANARY, "csi": {"volumeAttributes": {"password": CANARY}}}]}
    container["env"].append({"name": "FROM", "valueFrom": {"secretKeyRef": {"name": CANARY, "key": CANARY}}})
    container["env"].append({"name": f"{names.ENV_MEMORY_MIB}", "value": CANARY})
    pod["spec"] |= {"imagePullSecrets": [{"name": CANARY}], "hostname": CANARY, "serviceAccountName": CANARY}
    last = json.dumps({"spec": {"containers": [{"env": [{"value": CANARY}]}]}})
    pod["metadata"]["annotations"] |= {
        "kubectl.kubernetes.io/last-applied-configuration": last,
        "note": CANARY,
        f"not{names.DOMAIN}/x": CANARY,
    }
    owner = {"kind": "Job", "name": "j", "blockOwnerDeletion": CANARY}
    pod["metadata"] |= {"managedFields": [{"manager": CANARY}], "ownerReferences": [owner]}
    pod["spec"]["runtimeClassName"] = "nvidia"
    terminated = {"reason": "Error", "exitCode": 1, "message": CANARY}
    pod["status"]["containerStatuses"] = [{"name": "main", "ready": False, "lastState": {"terminated": terminated}}]
    return pod


def test_what_pods_keep_to_themselves_is_not_in_the_report(tmp_path: Path) -> None:
    api = world.healthy()
    api.seed("/api/v1/namespaces/default/pods", with_secrets(bound("theirs", make_grant(0))))
    world.put("ConfigMap", names.CONFIG, "data", "extra", value=CANARY)(api)
    own = "spec", "template", "spec", "containers", 0, "env"
    world.put("DaemonSet", names.PLUGIN, *own, value=[{"name": "OTHER", "value": CANARY}])(api)
    api.edit("/api/v1/nodes/node-a", keeping_to_itself)
    code, files, _ = made(api, tmp_path)
    assert code == 0
    assert [name for name, text in files.items() if CANARY in text] == []
    (info,) = [each["status"]["nodeInfo"] for each in yaml.safe_load_all(files["nodes.yaml"]) if "node-a" in str(each)]
    assert info == {"kubeletVersion": "v1"}
    (theirs,) = [each for each in yaml.safe_load_all(files["pods.yaml"]) if each["metadata"]["name"] == "theirs"]
    assert theirs["metadata"]["annotations"].keys() == {names.ANNOTATION_ALLOCATION}
    assert theirs["metadata"]["ownerReferences"] == [{"kind": "Job", "name": "j"}]
    assert theirs["spec"]["runtimeClassName"] == "nvidia"
    assert theirs["spec"]["containers"][0]["resources"] == {"limits": {names.GPU_MEM: 3}}
    variables = theirs["spec"]["containers"][0]["env"]
    assert variables[0]["valueFrom"].keys() == {"fieldRef"}
    assert variables[1:] == [{"name": "TOKEN"}, {"name": "FROM", "valueFrom": {}}, {"name": names.ENV_MEMORY_MIB}]
    assert theirs["status"]["containerStatuses"][0]["lastState"]["terminated"] == {"reason": "Error", "exitCode": 1}


def test_forged_events_change_nothing_else_of_it(tmp_path: Path) -> None:
    """Nor of what doctor and inspect say, which is in it."""
    api = world.healthy()
    path = "/api/v1/namespaces/default/events"
    api.seed(path, {"metadata": {"name": "e"}, "reason": "GpuShareUnschedulable", "message": "of others"})
    api.seed("/api/v1/namespaces/default/pods", pod := bound("theirs", make_grant(0)))
    _, before, _ = made(api, tmp_path)
    for event in forged_events(pod, world.skewed().now()):
        api.seed(path, event)
    _, after, _ = made(api, tmp_path)
    events = after.pop("events.yaml")
    assert before.pop("events.yaml") in events
    assert after == before
    assert not {"\x1b", "\r", "\u202e"} & {*events}
    assert len(list(yaml.safe_load_all(events))) > 100


def keeping_to_itself(node: Json) -> None:
    node["metadata"]["annotations"]["cloud/key"] = CANARY
    node["status"]["nodeInfo"] = {"machineID": CANARY, "systemUUID": CANARY, "bootID": CANARY, "kubeletVersion": "v1"}
    node["status"] |= {"addresses": [{"address": CANARY}], "images": [{"names": [CANARY]}]}


def test_it_has_what_helps(tmp_path: Path) -> None:
    api = world.healthy()
    event = {"metadata": {"name": "e"}, "reason": "GpuShareUnschedulable", "message": "needs 20 GiB on one GPU"}
    other = {"metadata": {"name": "f"}, "reason": "Killing", "message": "of others"}
    for each in event, other:
        api.seed("/api/v1/namespaces/default/events", each)
    pod = api.objects(f"/api/v1/namespaces/{NS}/pods")[0]
    name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
    path = kube.pod_path(NS, name, "log")
    query = f"container={container}&tailLines=5&limitBytes=1048576&previous="
    api.replies[f"{path}?{query}false"] = Reply(status=200, text="started\nAuthorization: Bearer abc.def\n")
    api.replies[f"{path}?{query}true"] = Reply(status=400, text="previous terminated container not found")
    pods = [each["metadata"]["name"] for each in api.objects(f"/api/v1/namespaces/{NS}/pods")]
    plugin, gone = (each for each in pods if each.startswith(names.PLUGIN))
    for each in plugin, gone:
        ports = [{"name": "metrics", "containerPort": 12347}]
        world.put("Pod", each, "spec", "containers", 0, "ports", value=ports)(api)
    api.replies[kube.pod_path(NS, f"{plugin}:12347", "proxy/metrics")] = Reply(status=200, text="gpu_granted 3\n")
    world.edit(api, "ConfigMap", names.SCHEDULER, lambda each: each["data"].update({"policy.cfg": "{}"}))

    code, files, err = made(api, tmp_path, logs=5)

    assert {call.verb for call in api.calls} == {"get", "list"}, "nothing is written"
    assert not [call.path for call in api.calls if "secrets" in call.path], "they are not even read"
    assert (code, err, files["README.txt"][:9]) == (0, "", "A report ")
    assert files[f"logs/{name}/{container}.log"] == "started\nAuthorization: Bearer (hidden)\n"
    assert f"logs/{name}/{container}.previous.log" not in files
    assert files[f"metrics/{plugin}.txt"] == "gpu_granted 3\n"
    assert files[f"metrics/{gone}.txt"].startswith("not read: ")
    assert {f"metrics/{names.WEBHOOK}.txt", f"metrics/{names.CONTROLLER}.txt"} <= {*files}
    assert [each["message"] for each in yaml.safe_load_all(files["events.yaml"])] == ["needs 20 GiB on one GPU"]
    assert json.loads(files["about.json"])["server"] == "1.30"
    assert json.loads(files["doctor.json"])["findings"] == []
    assert files["not-read.txt"] == ""
    assert {"README.txt", "doctor.txt", "inspect.txt", "inspect.json", "nodes.yaml", "own.yaml", "settings.yaml"} <= {
        *files
    }
    workloads = [each["spec"] for each in yaml.safe_load_all(files["own.yaml"]) if "template" in each["spec"]]
    assert len(workloads) == len([each for each in workloads if each["template"]["spec"]["containers"][0]["image"]]) > 2
    told = {each["metadata"]["name"]: each["data"] for each in yaml.safe_load_all(files["settings.yaml"])}
    assert names.CONFIG in told
    assert bundle.HIDDEN not in told[names.SCHEDULER].values()
    assert (tmp_path / "report.tar.gz").stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_read_is_named_and_the_rest_is_written(tmp_path: Path) -> None:
    api = world.healthy()
    api.fail_next(lambda call: call.path.endswith("/events"), kube.ForbiddenError("events is forbidden"))
    api.fail_next(lambda call: call.path.endswith("/runtimeclasses"), kube.ForbiddenError("no"), times=9)
    api.says(names.WEBHOOK_SERVICE, "metrics", kube.ForbiddenError("no"))
    code, files, err = made(api, tmp_path, logs=0)
    assert code == 0
    told = ["runtimeclasses: no", f"/metrics of service/{NS}/gpushare-webhook: no", "events: events is forbidden"]
    assert files["not-read.txt"].splitlines() == told
    assert [line for line in err.splitlines() if "not in" in line] == [f"note: not in the report: {x}" for x in told]
    assert not [name for name in files if name.startswith("logs/")]


def test_who_may_read_nearly_nothing_is_told_so(tmp_path: Path) -> None:
    api = world.healthy()
    api.fail_next(lambda call: call.path in {"/api/v1/nodes", "/api/v1/pods"}, kube.ForbiddenError("no"), times=99)
    code, _, err = made(api, tmp_path, logs=0)
    assert code == 0
    assert err.splitlines()[-1].startswith("note: the report is nearly empty: you may read neither nodes nor pods")


def test_of_many_pods_the_logs_of_those_that_are_not_ready_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = world.healthy()
    here = [pod["metadata"]["name"] for pod in api.objects(f"/api/v1/namespaces/{NS}/pods")]
    last = here[-1]
    for name in here:
        ready = [{"type": "Ready", "status": str(name != last)}]
        world.put("Pod", name, "status", "conditions", value=ready)(api)
    for limit, value, said in (("_ALL_BYTES", 1, "0 MiB"), ("_ALL_S", 0.0, "0 s")):
        with monkeypatch.context() as patch:
            patch.setattr(bundle, limit, value)
            _, files, err = made(api, tmp_path)

        of = {name.split("/")[1] for name in files if name.startswith("logs/")}
        read = [last] if limit == "_ALL_BYTES" else []
        assert sorted(of) == read
        left_out = f"logs and metrics of {len(here) - len(read)} pods, after {said} of others'"
        assert (f"note: not in the report: {left_out}" in err, files["not-read.txt"]) == (True, f"{left_out}\n")


def test_a_file_that_was_there_stays_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "report.tar.gz"
    there.write_text("before")

    def full(_: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, f"no room for {target}")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        assert called(world.healthy(), there, logs=0) == 1
    assert [each.read_text() for each in tmp_path.iterdir()] == ["before"]
    there.chmod(0o644)
    assert called(world.healthy(), there, logs=0) == 0
    assert there.stat().st_mode & 0o777 == 0o600


def test_a_link_that_another_user_left_in_the_directory_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "report.tar.gz").symlink_to(victim)
    assert called(world.healthy(), tmp_path / "report.tar.gz", logs=0) == 0
    assert victim.read_text() == "mine"


def test_it_goes_to_what_is_no_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        assert called(world.healthy(), pipe, logs=0) == 0
    with tarfile.open(fileobj=io.BytesIO(read.result())) as archive:
        assert not archive.getmember("gpushare-report/README.txt").pax_headers  # which few other programs read


def odd_spec(part: Json) -> Callable[[Json], None]:
    return lambda pod: pod["spec"].update(part)


@pytest.mark.parametrize(
    "spoil",
    [
        odd_spec({"containers": None}),
        odd_spec({"containers": "x"}),
        odd_spec({"containers": [{"name": "main", "resources": [], "env": {"x": 1}}]}),
        lambda pod: pod["metadata"].update(annotations=["x"], ownerReferences="x"),
        lambda pod: pod.update(status=["x"]),
        lambda pod: pod["status"].update(containerStatuses=[{"name": "main", "state": "x"}, "x"]),
    ],
)
@pytest.mark.parametrize("namespace", [NS, "default"])
def test_an_object_of_a_shape_that_no_one_expects_is_no_reason_to_write_nothing(
    tmp_path: Path, spoil: Callable[[Json], None], namespace: str
) -> None:
    api = world.healthy()
    api.seed(f"/api/v1/namespaces/{namespace}/pods", bound("odd", make_grant(0), namespace=namespace))
    api.edit(kube.pod_path(namespace, "odd"), spoil)
    code, files, _ = made(api, tmp_path)
    assert code == 0
    pods = yaml.safe_load_all(files["own.yaml" if namespace == NS else "pods.yaml"])
    assert "odd" in [each["metadata"]["name"] for each in pods]


def test_gpus_that_a_config_map_takes_out_of_use_are_shown_so_and_what_cannot_be_made_says_why(tmp_path: Path) -> None:
    api = world.healthy()
    world.seed(api, unhealthy_gpus("node-b", "2"))
    _, files, _ = made(api, tmp_path, logs=0)
    health = [gpu["health"] for node in json.loads(files["inspect.json"])["nodes"] for gpu in node["gpus"]]
    assert health == ["Healthy"] * 6 + ["Unhealthy", "Healthy"]
    api.edit(kube.pod_path("default", "web"), odd_spec({"containers": "x"}))
    _, files, _ = made(api, tmp_path, logs=0)
    told = "not made: spec.containers: expected a list, found a string\n"
    assert (files["inspect.txt"], files["inspect.json"]) == (told, told)


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    code, _, err = made(world.healthy(), tmp_path / "none")
    assert (code, err.splitlines()[-1]) == (1, f"error: {tmp_path}/none/report.tar.gz: No such file or directory")


def test_messages_lose_their_secrets_and_the_files_stay_readable(tmp_path: Path) -> None:
    api = world.healthy()
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----"
    for number in range(100):
        filler = "x" * number + " \x07" * (number % 2)
        for name, secret in ("b", f"Bearer {CANARY}"), ("k", key), ("p", f"password='{CANARY} {CANARY}'"):
            said = {"metadata": {"name": f"{name}{number}"}, "reason": "GpuShareX", "message": f"{filler} {secret} end"}
            api.seed("/api/v1/namespaces/default/events", said)
    _, files, _ = made(api, tmp_path, logs=0)
    told = [each["message"] for each in yaml.safe_load_all(files["events.yaml"])]
    assert len(told) == 300
    assert [each for each in told if CANARY in each or not each.endswith("end")] == []


def test_texts_lose_what_looks_like_a_credential(told: Told) -> None:
    """Before and after; with a sign for the end of a line."""
    for raw, expected in iter(told, []):
        assert bundle.cleaned(raw.replace("⏎", "\n")) == expected.replace("⏎", "\n")


@pytest.mark.parametrize("part", ["a-", "token ", "eyJ-", "--", "'", "a.b-token"])
def test_a_long_text_takes_no_longer_than_it_is_long(part: str) -> None:
    began = time.perf_counter()
    bundle.cleaned(part * (2**18 // len(part)))
    assert time.perf_counter() - began < 20


def test_objects_lose_what_a_field_or_a_flag_names() -> None:
    given = {"args": ["--token", "abc", "--v=2", "x"], "dbPassword": "abc", "valueFrom": {"secretKeyRef": {"key": "k"}}}
    kept = {"args": ["--token", "(hidden)", "--v=2", "x"], "dbPassword": "(hidden)", "valueFrom": given["valueFrom"]}
    assert bundle.cleaned_value({**given, "nested": [given, 3, None]}) == {**kept, "nested": [kept, 3, None]}
