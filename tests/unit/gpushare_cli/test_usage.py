import io
import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

import gpushare_cli.dashboard
from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import Reply
from gpushare.model.gpu import Limit, NodeInventory, Strength
from gpushare.model.ledger import Grant
from gpushare_cli import __main__ as cli, inspect_command, usage
from gpushare_cli.console import Streams
from gpushare_cli.dashboard import views
from gpushare_cli.dashboard.picture import Picture
from gpushare_cli.dashboard.views import Overview, Totals
from gpushare_cli.explain import command as explain
from gpushare_cli.inspect_command import Options as Inspect
from gpushare_cli.reading import Target
from gpushare_cli.usage import NodeUse, Use
from testing.builders import Json, make_grant, make_inventory, make_node
from testing.cli.calling import reached
from testing.cli.explaining import kube_of
from testing.cli.podding import bound
from testing.cli.simulating import lines
from testing.fakes.kube import FakeKube

PAGE = """# HELP gpushare_plugin_gpu_foreign_bytes Memory
gpushare_plugin_gpu_foreign_bytes{UUID="GPU-0",gpu="0",node="node-a"} 0.0
gpushare_plugin_container_granted_bytes{UUID="GPU-0",container="main",namespace="default",pod="web"} 3e+09
gpushare_plugin_container_used_bytes{UUID="GPU-0",container="main",namespace="default",pod="web"} 1.048577e+06
gpushare_plugin_container_used_bytes{UUID="GPU-1",container="_others",namespace="default",pod="web"} 5.24288e+06
gpushare_plugin_container_peak_bytes{UUID="GPU-0",container="main",namespace="default",pod="web"} 4.294967296e+09
"""
PROXY = "/api/v1/namespaces/gpushare-system/pods/plugin-a:12347/proxy/metrics"
NOT_READ = "its device plugin does not read it (manifests/usage)"


def plugin(node: str = "node-a", *, name: str = "plugin-a", port: Mapping[str, object] | None = None) -> Json:
    ports = [{"name": "probe", "containerPort": 12346}, port or {"name": "metrics", "containerPort": 12347}]
    return {
        "metadata": {"namespace": names.NAMESPACE, "name": name, "labels": {"app.kubernetes.io/name": names.PLUGIN}},
        "spec": {"nodeName": node, "containers": [{"name": "device-plugin", "ports": ports}]},
    }


def cluster(
    reply: Reply | kube.KubeError | None, *pods: Json, plugins: tuple[Json, ...] = (plugin(),), **first: Any
) -> FakeKube:
    """Two GPUs of node-a, held by cgroup, if nothing else is said, and by MIG."""
    plain = make_inventory(16, 8)
    kinds: tuple[dict[str, Any], ...] = ({"limit": Limit.CGROUP, **first}, {"limit": Limit.MIG})
    gpus = tuple(replace(gpu, **kind) for gpu, kind in zip(plain.gpus, kinds, strict=True))
    api = FakeKube()
    api.seed("/api/v1/nodes/node-a", make_node(NodeInventory(node=plain.node, gpus=gpus, unit=plain.unit)))
    for pod in pods or (bound("web", make_grant(0, 1, gib=3)),):
        api.seed(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}", pod)
    for each in plugins:
        api.seed(f"/api/v1/namespaces/gpushare-system/pods/{each['metadata']['name']}", each)
    if reply is not None:
        api.replies[PROXY] = reply
    return api


def inspect(api: FakeKube, options: Inspect) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = inspect_command.run(api, Streams(out=out, err=err), options)
    return code, out.getvalue(), err.getvalue()


def explained(api: FakeKube) -> str:
    out, options = io.StringIO(), explain.Options(pod=Target(namespace="default", name="web"))
    assert explain.run(api, Streams(out=out, err=io.StringIO()), options, lambda: "") == 0
    return out.getvalue()


def test_a_page_of_the_plugin_is_read() -> None:
    assert usage.parse(PAGE) == NodeUse(
        uses={("default", "web", "main", "GPU-0"): Use(2, 4096), ("default", "web", "", "GPU-1"): Use(5, None)},
        granted={("default", "web", "main", "GPU-0"): 2862},
    )
    assert usage.parse("") == NodeUse(problem=NOT_READ)


NONE_KNOWN = """gpushare_plugin_usage_info{node="node-a",reading="on"} 1.0
gpushare_plugin_gpu_foreign_bytes{UUID="GPU-0",gpu="0",node="node-a"} 5.0
gpushare_plugin_gpu_processes{known="true",node="node-a"} %d
gpushare_plugin_gpu_processes{known="false",node="node-a"} 3.0
"""


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ('gpushare_plugin_usage_info{reading="off"} 1.0\n', NOT_READ),
        (
            'gpushare_plugin_usage_info{reading="no-host-pid"} 1.0\n',
            "its device plugin does not see the processes of the node: it needs hostPID (manifests/usage)",
        ),
        ('gpushare_plugin_usage_info{node="node-a",reading="on"} 1.0\n', "its driver lists no processes"),
        ('gpushare_plugin_usage_info{reading="no-answer"} 1.0\n', "its driver lists no processes"),
        (
            NONE_KNOWN % 0,
            "of 3 processes on its GPUs, its device plugin finds none in /proc, and so not their containers",
        ),
        (NONE_KNOWN % 1, ""),
    ],
)
def test_a_plugin_says_itself_why_it_does_not_know(page: str, problem: str) -> None:
    assert usage.parse(page).problem == problem


@pytest.mark.parametrize(
    "value", ["1e999", "1e+999", "e", ".", "+", "1.2.3", "NaN", "+Inf", "-5", "9e+99", "1e+19", "9" * 400, ""]
)
def test_what_is_no_number_of_bytes_is_passed_over(value: str) -> None:
    line = 'gpushare_plugin_container_used_bytes{UUID="GPU-0",container="main",namespace="default",pod="odd"} '
    assert usage.parse(f"{PAGE}{line}{value}\n") == usage.parse(PAGE)
    fact = f'gpushare_plugin_gpu_processes{{known="false"}} {value}\n'
    assert usage.parse(NONE_KNOWN % 0 + fact) == usage.parse(NONE_KNOWN % 0)


def test_the_plain_output_stays_and_the_limits_follow() -> None:
    api = cluster(Reply(status=200, text=PAGE))
    _, plain, _ = inspect(api, Inspect(details=True))
    assert plain != inspect(api, Inspect())[1]
    assert api.asked == []
    code, out, err = inspect(api, Inspect(details=True, limits=True))
    assert (code, err) == (0, "")
    assert out == plain + lines(
        "",
        "NODE    NAMESPACE  POD  CONTAINER  GPU  LIMIT     GRANTED   USED   PEAK",
        "node-a  default    web  main       0    cgroup    3072 MiB  2 MiB  4096 MiB",
        "node-a  default    web  main       1    advisory  3072 MiB  ?      ?",
        "node-a  default    web  (others)   1    advisory  0 MiB     5 MiB  ?",
    )
    explanation = explained(api)
    held_by = "the NVIDIA driver, for the pod's cgroup; nothing: no variable tells its programs about their"
    assert f"LIMIT:      {held_by}" in explanation
    table = lines(
        "CONTAINER  GPU  LIMIT     GRANTED   USED   PEAK",
        "main       0    cgroup    3072 MiB  2 MiB  4096 MiB",
        "main       1    advisory  3072 MiB  ?      ?",
        "(others)   1    advisory  0 MiB     5 MiB  ?",
    )
    assert table in explanation


def test_programs_get_the_limits_if_they_ask_for_them() -> None:
    api = cluster(Reply(status=200, text=PAGE.replace("GPU-1", "GPU-gone")))
    assert "limits" not in orjson.loads(inspect(api, Inspect(output="json"))[1])
    rows = orjson.loads(inspect(api, Inspect(output="json", limits=True))[1])["limits"]
    place = {"node": "node-a", "namespace": "default", "pod": "web", "container": "main", "gpu": "0"}
    share = {"limit": "cgroup", "limitReason": None, "grantedMiB": 3072, "usedMiB": 2, "peakMiB": 4096}
    assert rows[0] == place | share
    gone = {"container": None, "gpu": "GPU-gone", "limit": "?", "limitReason": None, "grantedMiB": 0}
    assert gone.items() <= rows[2].items()


def test_of_a_pod_whose_allocation_cannot_be_read_it_is_not_told_that_nothing_was_granted() -> None:
    odd = bound("web", make_grant(0))
    odd["metadata"]["annotations"] = {names.ANNOTATION_ALLOCATION: "{"}
    code, out, err = inspect(cluster(Reply(status=200, text=PAGE), odd), Inspect(limits=True))
    assert (code, "web" in out, "counted as pending" in err) == (0, False, True)


FORBIDDEN = kube.ForbiddenError('pods "plugin-a" is forbidden: cannot get resource "pods/proxy"')


@pytest.mark.parametrize(
    ("reply", "plugins", "problem"),
    [
        (FORBIDDEN, (plugin(),), f"its device plugin cannot be asked: {FORBIDDEN}"),
        (kube.ServerFaultError("timeout"), (plugin(),), "its device plugin cannot be asked: timeout"),
        (Reply(status=404, text="not found\n"), (plugin(),), "its device plugin answers not found"),
        (Reply(status=200, text="x 1\n"), (plugin(),), NOT_READ),
        (None, (), "there is no gpushare-device-plugin on it"),
        (None, (plugin("node-b"),), "there is no gpushare-device-plugin on it"),
        (None, (plugin(port={"name": "other", "containerPort": 1}),), "there is no gpushare-device-plugin on it"),
    ],
)
def test_it_is_told_why_the_use_is_not_known(
    reply: Reply | kube.KubeError | None, plugins: tuple[Json, ...], problem: str
) -> None:
    api = cluster(reply, plugins=plugins)
    code, out, err = inspect(api, Inspect(limits=True))
    assert (code, err) == (0, f"note: what is used on node node-a is not known: {problem}\n")
    assert "node-a  default    web  main       0    cgroup    3 GiB    ?     ?\n" in out
    assert f"USE:        not known: {problem}\n" in explained(api)


def test_a_list_of_plugins_that_is_forbidden_is_told() -> None:
    api = cluster(None)
    api.fail_next(lambda call: "gpushare-system" in call.path, kube.ForbiddenError("pods is forbidden"))
    problem = "device plugins cannot be listed: pods is forbidden"
    assert usage.read(api, [NodeName("node-a")], names.NAMESPACE) == {"node-a": NodeUse(problem=problem)}


def test_a_plugin_that_there_was_no_time_to_ask_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    api, over = cluster(None, plugins=(plugin(), plugin("node-b", name="plugin-b"))), threading.Event()
    monkeypatch.setattr(usage, "_ALL_S", 0.0)
    monkeypatch.setattr(usage, "_AT_ONCE", 1)
    monkeypatch.setattr(api, "ask", lambda *_, **__: Reply(status=200, text=PAGE) if over.wait() else None)
    try:
        known = usage.read(api, nodes := [NodeName("node-a"), NodeName("node-b")], names.NAMESPACE)
    finally:
        over.set()
    assert known == dict.fromkeys(nodes, NodeUse(problem="there was no time to ask it"))


def test_why_limits_are_not_stronger_is_told() -> None:
    page, pod = Reply(status=200, text=PAGE), bound("web", make_grant(0, gib=3))
    api = cluster(page, pod, limit=Limit.MPS, limit_reason="cgroup: old driver")
    assert inspect(api, Inspect())[2] == ""
    _, _, err = inspect(api, Inspect(limits=True))
    assert err == "note: limits on node node-a are mps; no stronger limit holds: cgroup: old driver\n"
    row, *_ = orjson.loads(inspect(api, Inspect(output="json", limits=True))[1])["limits"]
    assert row["limitReason"] == "cgroup: old driver"
    held_by = "MPS, each process by itself, which programs can bypass; no stronger limit holds: cgroup: old driver"
    assert f"LIMIT:      {held_by}\n" in explained(api)


def test_pods_that_hold_nothing_or_cannot_be_read_have_no_line() -> None:
    ended = bound("ended", make_grant(0), phase="Succeeded")
    unreadable = bound("bad", make_grant(0))
    unreadable["metadata"]["annotations"] = {names.ANNOTATION_ALLOCATION: "?"}
    _, out, _ = inspect(cluster(Reply(status=200, text=PAGE), ended, unreadable), Inspect(limits=True))
    assert out.endswith("\nNODE  NAMESPACE  POD  CONTAINER  GPU  LIMIT  GRANTED  USED  PEAK\n")
    # Many nodes with the same problem are one note.
    uses = {NodeName(f"n{number}"): NodeUse(problem="it is down") for number in range(5)}
    assert usage.notes(uses) == ["what is used on nodes n0, n1, n2 and 2 more is not known: it is down"]


PAGE_VIEWS: Final = Path(gpushare_cli.dashboard.__file__).parent / "page/index.html"
WHOLE: Final = (make_grant(0, gib=8),)
PART: Final = (make_grant(0, gib=7),)
HALVES: Final = (make_grant(0, gib=4), make_grant(0, gib=4, container="second"))
_BAR: Final = r"\d/8 GiB +(\w[\w ]*\w) +1 pod"
VARIABLES: Final = "nothing: no variable tells its programs about their share"


@pytest.mark.parametrize(
    ("limit", "grants", "shown", "explained"),
    [
        (Limit.MIG, WHOLE, Limit.MIG, "the hardware: they are MIG instances"),
        (Limit.MIG, PART, Limit.ADVISORY, VARIABLES),
        (Limit.MIG, HALVES, Limit.ADVISORY, VARIABLES),
        (Limit.CGROUP, PART, Limit.CGROUP, "the NVIDIA driver, for the pod's cgroup"),
        (Limit.WATCHDOG, PART, Limit.WATCHDOG, "the watchdog, after the fact"),
    ],
    ids=["a MIG instance", "a part of one", "a part for each container", "a cgroup", "the watchdog"],
)
def test_every_view_says_the_same_of_what_holds_a_pod_to_its_share(
    limit: Limit,
    grants: tuple[Grant, ...],
    shown: Limit,
    explained: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = make_inventory(8)
    node = make_node(replace(plain, gpus=(replace(plain.gpus[0], limit=limit),)))
    pod = bound("web", *grants)
    api = kube_of([node, pod])
    reached(monkeypatch, api)

    def said(*arguments: str) -> str:
        assert cli.main([*arguments]) == 0
        return capsys.readouterr().out

    view = views.of_node(node, [pod], frozenset(), None)
    assert view is not None
    overview = Overview(server="", complete=True, scope="", totals=Totals())
    page = Picture(version=1, nodes={"node-a": view}, overview=overview).page.decode()
    explain, inspect = ("explain", "-n", "default", "web"), ("inspect", "--limits")
    explanation, table = orjson.loads(said(*explain, "-o", "json")), r" 0 +(\S+) +\d GiB +\?"
    limits = {
        "explain": re.findall(table, said(*explain)),
        "explain -o json": [share["limit"] for share in explanation["containers"]],
        "inspect --limits": re.findall(table, said(*inspect)),
        "inspect --limits -o json": [row["limit"] for row in orjson.loads(said(*inspect, "-o", "json"))["limits"]],
        "dashboard": re.findall(r'"limit":"(.*?)"', page),
    }
    bars = {name: re.findall(_BAR, said(*name.split())) for name in ("inspect --bars", "top")}
    strength = shown.strength.value
    assert {view: set(words) for view, words in limits.items()} == {view: {shown.value} for view in limits}
    assert bars == {view: [strength.replace("after the", "after")] for view in bars}
    assert re.findall(r'"strength":"(.*?)"', page) == [strength]
    assert explanation["limitHeldBy"] == explained


def test_the_legend_of_the_page_has_every_strength() -> None:
    (legend,) = re.findall("<li>The word above a bar (.*)</li>", PAGE_VIEWS.read_text(encoding="utf-8"))
    assert re.findall("<b>(.*?)</b>", legend) == [strength.value for strength in Strength]
