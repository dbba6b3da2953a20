"""`gpushare report`: what is in the file, and what must never be."""

import io
import json
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import Reply
from gpushare_cli import commands
from gpushare_cli.bundle import command, redact
from gpushare_cli.bundle.command import Options
from gpushare_cli.commands import Streams
from testing.builders import Json, make_grant
from tests.unit.gpushare_cli import doctor_cluster as world
from tests.unit.gpushare_cli.doctor_cluster import NS, DoctorKube
from tests.unit.gpushare_cli.podding import bound

CANARY = "canary-7f3a"


def made(api: DoctorKube, tmp_path: Path, **options: Any) -> tuple[int, dict[str, str], str]:
    """Exit code, the files of the report, and what was said."""
    err = io.StringIO()
    streams = Streams(out=io.StringIO(), err=err)
    path = tmp_path / "report.tar.gz"
    asked = Options(file=str(path), **options)
    code = commands.answer(streams, lambda: command.run(api, streams, asked, world.Clock()))
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
    pod["spec"] |= {"imagePullSecrets": [{"name": CANARY}], "hostname": CANARY, "serviceAccountName": CANARY}
    last = json.dumps({"spec": {"containers": [{"env": [{"value": CANARY}]}]}})
    pod["metadata"]["annotations"] |= {"kubectl.kubernetes.io/last-applied-configuration": last, "note": CANARY}
    pod["metadata"]["managedFields"] = [{"manager": CANARY}]
    terminated = {"reason": "Error", "exitCode": 1, "message": CANARY}
    pod["status"]["containerStatuses"] = [{"name": "main", "ready": False, "lastState": {"terminated": terminated}}]
    return pod


def test_what_pods_keep_to_themselves_is_not_in_the_report(tmp_path: Path) -> None:
    api = world.healthy()
    api.seed("/api/v1/namespaces/default/pods", with_secrets(bound("theirs", make_grant(0))))
    api.seed(f"/api/v1/namespaces/{NS}/configmaps", settings({"extra": CANARY}))
    api.edit("/api/v1/nodes/node-a", lambda node: node["metadata"]["annotations"].update({"cloud/key": CANARY}))

    code, files, _ = made(api, tmp_path)

    assert code == 0
    assert [name for name, text in files.items() if CANARY in text] == []
    (theirs,) = [each for each in yaml.safe_load_all(files["pods.yaml"]) if each["metadata"]["name"] == "theirs"]
    assert theirs["metadata"]["annotations"].keys() == {names.ANNOTATION_ALLOCATION}
    assert theirs["spec"]["containers"][0]["resources"] == {"limits": {names.GPU_MEM: 3}}
    assert [each["name"] for each in theirs["spec"]["containers"][0]["env"]] == [names.ENV_VISIBLE_DEVICES, "TOKEN"]
    assert theirs["status"]["containerStatuses"][0]["lastState"]["terminated"] == {"reason": "Error", "exitCode": 1}


def settings(data: Json) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": NS}, "data": data}


def test_secrets_are_not_even_read(tmp_path: Path) -> None:
    api = world.healthy()

    made(api, tmp_path)

    assert [call.path for call in api.calls if "secrets" in call.path] == []
    assert {call.verb for call in api.calls} == {"get", "list"}, "nothing is written"


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

    code, files, err = made(api, tmp_path, logs=5)

    assert (code, err) == (0, "")
    assert files[f"logs/{name}/{container}.log"] == "started\nAuthorization: Bearer (hidden)\n"
    assert f"logs/{name}/{container}.previous.log" not in files
    assert [each["message"] for each in yaml.safe_load_all(files["events.yaml"])] == ["needs 20 GiB on one GPU"]
    assert json.loads(files["about.json"])["server"] == "1.30"
    assert json.loads(files["doctor.json"])["findings"] == []
    assert files["not-read.txt"] == ""
    assert {"README.txt", "doctor.txt", "inspect.txt", "inspect.json", "nodes.yaml", "own.yaml", "settings.yaml"} <= {
        *files
    }
    told = {each["metadata"]["name"] for each in yaml.safe_load_all(files["settings.yaml"])}
    assert names.CONFIG in told
    assert (tmp_path / "report.tar.gz").stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_read_is_named_and_the_rest_is_written(tmp_path: Path) -> None:
    api = world.healthy()
    api.fail_next(lambda call: call.path.endswith("/events"), kube.ForbiddenError("events is forbidden"))
    api.fail_next(lambda call: call.path.endswith("/runtimeclasses"), kube.ForbiddenError("no"), times=9)

    code, files, err = made(api, tmp_path, logs=0)

    assert code == 0
    assert files["not-read.txt"] == "runtimeclasses: no\n"
    assert "note: not in the report: events: events is forbidden" in err
    assert "note: not in the report: runtimeclasses: no" in err
    assert not [name for name in files if name.startswith("logs/")]


def test_of_many_pods_the_logs_of_those_that_are_not_ready_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = world.healthy()
    here = [pod["metadata"]["name"] for pod in api.objects(f"/api/v1/namespaces/{NS}/pods")]
    last = here[-1]
    for name in here:
        ready = {"conditions": [{"type": "Ready", "status": str(name != last)}]}
        api.edit(kube.pod_path(NS, name), partial(setting, ready))
    for limit, value, said in (("_ALL_BYTES", 1, "0 MiB"), ("_ALL_S", 0.0, "0 s")):
        with monkeypatch.context() as patch:
            patch.setattr(command, limit, value)
            _, files, err = made(api, tmp_path)

        of = {name.split("/")[1] for name in files if name.startswith("logs/")}
        read = [last] if limit == "_ALL_BYTES" else []
        assert sorted(of) == read
        assert f"note: not in the report: logs of {len(here) - len(read)} pods, after {said} of others'" in err


def setting(status: Json, pod: Json) -> None:
    pod["status"].update(status)


def test_a_file_that_was_there_is_for_its_owner_alone_too(tmp_path: Path) -> None:
    there = tmp_path / "report.tar.gz"
    there.write_text("")
    there.chmod(0o644)

    made(world.healthy(), tmp_path)

    assert there.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    code, _, err = made(world.healthy(), tmp_path / "none")

    assert (code, err.splitlines()[-1]) == (1, f"error: {tmp_path}/none/report.tar.gz: No such file or directory")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("nothing to see", "nothing to see"),
        ("Authorization: Bearer abc", "Authorization: Bearer (hidden)"),
        ("header basic dXNlcjpwYXNz end", "header basic (hidden) end"),
        ("got eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJr.c2ln here", "got (hidden) here"),
        ("https://me:pw@host/x", "https://(hidden)@host/x"),
        ('{"password": "a b"}', '{"password": "(hidden)"}'),
        ("passphrase='it is; long', more", "passphrase='(hidden)', more"),
        (r'''"{\"password\": \"a b\", \"x\": 1}"''', r'''"{\"password\": \"(hidden)\", \"x\": 1}"'''),
        ("x-eyJaaaaaaaa.bb keyJoinsOthers.py", "(hidden) keyJoinsOthers.py"),
        ("token: 'not closed", "token: '(hidden) closed"),
        ("DB_PASSWORD=abc next", "DB_PASSWORD=(hidden) next"),
        ("api-key: abc, more", "api-key: (hidden), more"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nrest", "(hidden)\nrest"),
        ("-----BEGIN CERTIFICATE-----\nMII cut", "(hidden)"),
        ("no token here", "no token here"),
        ("aliyun.com/gpu-mem: 3", "aliyun.com/gpu-mem: 3"),
    ],
)
def test_texts_lose_what_looks_like_a_credential(raw: str, expected: str) -> None:
    assert redact.text(raw) == expected
