"""The dashboard inside of a cluster: it changes nothing, and only the API server's authentication lets anyone in."""

import socket
import subprocess
import sys
from collections.abc import Iterator

from gpushare import names
from gpushare.kube import api as kube
from gpushare.runtime.clock import SystemClock
from gpushare_cli import __main__ as cli
from gpushare_cli.dashboard import command, server
from gpushare_cli.dashboard.command import Options
from testing import clusters
from testing.fakes.kube import Call
from testing.manifests import tree
from testing.manifests.tree import Json

OBJECTS = tree.objects("dashboard")
NAME = "gpushare-dashboard"
SUBJECT = {"kind": "ServiceAccount", "name": NAME, "namespace": names.NAMESPACE}


def granted() -> Iterator[tuple[str, str, str, str]]:
    """Scope, resource, verb and name."""
    for binding in OBJECTS:
        if binding["kind"].endswith("RoleBinding"):
            assert binding["subjects"] == [SUBJECT]
            scope = binding["metadata"].get("namespace", "")
            [role] = [
                each
                for each in OBJECTS
                if each["kind"] == binding["roleRef"]["kind"] and each["metadata"].get("namespace", "") == scope
            ]
            for rule in role["rules"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield scope, resource, verb, rule.get("resourceNames", [""])[0]


def test_it_may_do_what_it_does_and_nothing_else() -> None:
    api = clusters.small()
    live = command.picture(api, Options(), lambda: names.NAMESPACE, SystemClock())
    for reflector in live._reflectors.values():
        page = reflector._list()
        assert page
        reflector._stream()
    live.refresh()
    live.ask_use()
    api.close()
    used = {right(call) for call in api.calls} | {(names.NAMESPACE, "pods/proxy", "get", "") for _ in api.asked[:1]}
    # Listing the pods of one namespace needs no right beside that for all.
    used.discard((names.NAMESPACE, "pods", "list", ""))
    assert used == set(granted())


def right(call: Call) -> tuple[str, str, str, str]:
    rest = call.path.strip("/").split("/")[2:]
    scope = ""
    if rest[0] == "namespaces":
        scope, rest = rest[1], rest[2:]
    return scope, rest[0], call.verb, rest[1] if len(rest) > 1 else ""


def test_nothing_it_may_do_changes_anything() -> None:
    assert {verb for _, _, verb, _ in granted()} == {"get", "list", "watch"}


def deployment() -> Json:
    pod: Json = tree.one(OBJECTS, "Deployment", NAME)["spec"]["template"]["spec"]
    return pod


def test_no_address_but_the_pods_own_loopback_leads_to_it() -> None:
    assert {each["kind"] for each in OBJECTS}.isdisjoint({"Service", "Ingress"})
    [container] = deployment()["containers"]
    assert "ports" not in container
    assert not {"hostNetwork", "hostPID", "hostIPC"} & deployment().keys()
    assert server.LOOPBACK == "127.0.0.1"
    module, argv = container["command"][:3], container["command"][3:]
    assert module == ["python3", "-m", "gpushare_cli"]
    arguments = cli.command_line().parse_args(argv)
    assert (arguments.no_key, arguments.port) == (True, command.PORT)


def test_it_is_not_ready_before_it_listens() -> None:
    [container] = deployment()["containers"]
    program, option, text = container["startupProbe"]["exec"]["command"]
    assert (program, option) == ("python3", "-c")
    with socket.create_server((server.LOOPBACK, 0)) as listening:
        script = text.replace(str(command.PORT), str(listening.getsockname()[1]))
        assert script != text
        assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 1


def test_its_pod_is_as_hardened_as_the_others() -> None:
    pod = deployment()
    [container] = pod["containers"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert set(container["resources"]["limits"]) == {"memory"}
    assert (
        container["image"]
        == tree.one(tree.objects("base"), "Deployment", names.CONTROLLER)["spec"]["template"]["spec"]["containers"][0][
            "image"
        ]
    )


def test_no_overlay_has_it_unless_it_is_added() -> None:
    for overlay in tree.OVERLAYS:
        assert NAME not in {each["metadata"]["name"] for each in tree.listed(f"overlays/{overlay}")}


def test_without_a_right_the_picture_would_be_smaller() -> None:
    api = clusters.small()
    api.fail_next(lambda call: call.path == "/api/v1/pods", kube.ForbiddenError("no"))
    assert not command.picture(api, Options(), lambda: "research", SystemClock()).scope.complete
    api.close()
