"""Alert rules and dashboard: what they ask for is there, and every alert fires and resolves."""

import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from controller.extender import bind
from controller.reconcile import waiting
from deviceplugin.decide import Reason
from deviceplugin.usage.join import UsageReading
from gpushare import names
from gpushare.model.gpu import GpuHealth, Limit
from localcluster import prometheus
from localcluster.provision import ProvisionError
from release.pages import metrics
from testing.manifests import helm, tree
from testing.manifests.helm import CHART
from testing.pages import blocks, text
from webhook.metrics import Outcome

RULES_FILE: Final = CHART / "files" / "rules.yaml"
BOARD: Final = CHART / "files" / "overview.json"
RULES: Final[Mapping[str, Any]] = yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))
COMPONENT: Final = tree.objects("monitoring")
MONITORS: Final = [each for each in COMPONENT if each["kind"].endswith("Monitor")]
ALERTS: Final = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
BAD: Final = 90
"""Minutes that a series is bad, after 10 good ones."""
BUILD: Final = 'gpushare_build_info{component="gpushare-webhook"}'
FIRES: Final = 95
RESOLVED: Final = 130
STARTS: Final = 'gpushare_plugin_starts_total{node="a",outcome="refused",reason="NotLimited"}'


def state(good: float | str, bad: float | str) -> str:
    """Of a gauge, minute by minute: good, bad, good again. `_` stands for no sample."""
    parts = ((good, 10), (bad, BAD), (good, RESOLVED))
    return " ".join(f"{value}x{count}" if value == "_" else f"{value}+0x{count - 1}" for value, count in parts)


def grows(by: float) -> str:
    """Of a counter: it stands still, grows each minute, and stands still."""
    return f"0+0x9 0+{by}x{BAD} {by * BAD}+0x{RESOLVED}"


def slow(name: str, labels: str) -> dict[str, str]:
    """Of a histogram: ten observations a minute, at first of less than a second and then of more."""
    place = f"{name}_bucket{{{labels}"
    return {
        f'{place},le="1"}}': f"0+10x9 100+0x{BAD} 100+10x{RESOLVED}",
        f'{place},le="2.5"}}': f"0+10x{RESOLVED + BAD}",
        f'{place},le="+Inf"}}': f"0+10x{RESOLVED + BAD}",
    }


GPU: Final = 'node="a",UUID="GPU-1",gpu="1"'
CASES: Final[Mapping[str, Mapping[str, str]]] = {
    "GpuShareControllerNotReady": {
        'gpushare_ready{instance="x"}': state(1, 0),
        'gpushare_ready{instance="y"}': "0x140",
        BUILD: "1x140",
    },
    "GpuShareWebhookSilent": {
        'gpushare_webhook_admissions_total{webhook="mutate",outcome="mutated"}': state(1, "_"),
        BUILD: "1x140",
    },
    "GpuShareCertificateExpires": {
        "gpushare_webhook_certificate_ttl_seconds": state(5_000_000, 600_000),
        "gpushare_webhook_ca_ttl_seconds": state(50_000_000, 50_000_000),
    },
    "GpuShareAdmissionFails": {
        'gpushare_webhook_admissions_total{webhook="mutate",outcome="failed"}': grows(1),
        'gpushare_webhook_admissions_total{webhook="mutate",outcome="mutated"}': "0+1x140",
    },
    "GpuShareAdmissionSlow": slow("gpushare_webhook_admission_duration_seconds", 'webhook="mutate"'),
    "GpuShareBindFails": {
        'gpushare_extender_requests_total{verb="bind",outcome="in-doubt"}': grows(1),
        'gpushare_extender_requests_total{verb="bind",outcome="bound"}': "0+1x140",
        'gpushare_extender_requests_total{verb="filter",outcome="busy"}': "0+1x140",
    },
    "GpuShareBindSlow": {
        **slow("gpushare_extender_request_duration_seconds", 'verb="bind"'),
        'gpushare_extender_request_duration_seconds_bucket{verb="filter",le="+Inf"}': "0+10x140",
    },
    "GpuSharePodsWait": {
        'gpushare_pods_waiting{reason="InsufficientGpuMemory"}': state(0, 2),
        'gpushare_pods_waiting{reason="NotTried"}': "5x140",
    },
    "GpuShareLedgerDiffers": {"gpushare_ledger_differences": state(0, 1)},
    "GpuShareOverCommitted": {'gpushare_gpu_over_committed_bytes{node="a",UUID="GPU-1"}': state("_", 5)},
    "GpuShareAllocationUnreadable": {"gpushare_pods_unreadable": state(0, 1)},
    "GpuSharePluginSilent": {
        'gpushare_node_gpus{node="a",health="Healthy"}': "4x140",
        'gpushare_node_gpus{node="b",health="Healthy"}': "4x140",
        f"gpushare_plugin_gpu_memory_bytes{{{GPU}}}": state(1, "_"),
        'gpushare_plugin_gpu_memory_bytes{node="b",UUID="GPU-2",gpu="0"}': "1x140",
    },
    "GpuShareGpuUnhealthy": {
        f'gpushare_plugin_gpu_unhealthy{{{GPU},reason="Xid79"}}': state("_", 1),
        'gpushare_plugin_gpu_unhealthy{node="a",UUID="",gpu="2",reason="MigWithoutInstances"}': "1x140",
    },
    "GpuShareLimitLost": {
        f'gpushare_plugin_gpu_limit_info{{{GPU},limit="cgroup",enforced="true",reason=""}}': state(1, "_"),
        f'gpushare_plugin_gpu_limit_info{{{GPU},limit="advisory",enforced="false",reason="DriverTooOld"}}': state(
            "_", 1
        ),
        'gpushare_plugin_gpu_limit_info{node="b",UUID="GPU-2",gpu="0",limit="advisory",enforced="false"}': "1x140",
    },
    "GpuShareStartsRefused": {STARTS: grows(1), STARTS.replace("NotLimited", "GpuGone"): "0+1x140"},
    "GpuShareOverGrant": {'gpushare_plugin_containers_over_grant{node="a"}': state(0, 1)},
    "GpuShareUsageUnknown": {
        'gpushare_plugin_usage_info{node="a",reading="on"}': state(1, "_"),
        'gpushare_plugin_usage_info{node="a",reading="no-answer"}': state("_", 1),
        'gpushare_plugin_gpu_processes{node="b",known="true"}': "1x140",
        'gpushare_plugin_gpu_processes{node="b",known="false"}': "1x140",
    },
    "GpuShareSeriesLeftOut": {'gpushare_plugin_containers_left_out{node="a"}': state(0, 5)},
    "GpuShareVersionsDiffer": {
        'gpushare_build_info{component="x",version="1"}': "1x140",
        'gpushare_build_info{component="y",version="2"}': state("_", 1),
    },
}
"""Series of which some are bad for a while, and others, which are none of the alert's, are all the time."""


def promtool(*arguments: str | Path, text: str = "") -> str:
    """What it prints; an AssertionError if it finds anything wrong. Skips where no package can be had."""
    try:
        program = prometheus.programs() / "promtool"
    except ProvisionError as error:
        pytest.skip(str(error))
    argv = [str(program), *map(str, arguments)]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def firing(alert: str, minute: int, count: int, labels: str = "") -> dict[str, Any]:
    """Of all alerts only this one."""
    return {
        "expr": f'count(ALERTS{{alertstate="firing",alertname="{alert}"{labels}}}) or vector(0)',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": "{}", "value": count}],
    }


@pytest.fixture
def try_rules(tmp_path: Path) -> Callable[..., None]:
    """Has Prometheus see series, and asks it what a test of its own may ask."""

    def run(series: Mapping[str, str], **asked: list[dict[str, Any]]) -> None:
        given = [{"series": name, "values": values} for name, values in series.items()]
        test = {"interval": "1m", "input_series": given, **asked}
        path = tmp_path / "tests.yaml"
        path.write_text(yaml.safe_dump({"rule_files": [str(RULES_FILE)], "evaluation_interval": "1m", "tests": [test]}))
        promtool("test", "rules", path)

    return run


def test_every_alert_has_a_case() -> None:
    assert CASES.keys() == ALERTS.keys()


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_and_resolves(alert: str, try_rules: Callable[..., None]) -> None:
    asked = [firing(alert, minute, count) for minute, count in ((9, 0), (FIRES, 1), (RESOLVED, 0))]
    try_rules(CASES[alert], promql_expr_test=asked)


def of_cluster(name: str, series: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for each, values in series.items():
        metric, _, labels = each.partition("{")
        found[f'{metric}{{cluster="{name}",{labels or "}"}'] = values
    return found


@pytest.mark.parametrize("alert", CASES)
def test_of_two_clusters_in_one_store_it_fires_for_the_one_where_it_is_so(
    alert: str, try_rules: Callable[..., None]
) -> None:
    good = {name: f"{values.split()[0].partition('x')[0]}x300" for name, values in CASES[alert].items()}
    asked = [firing(alert, minute, count) for minute, count in ((9, 0), (FIRES, 1), (RESOLVED, 0))]
    asked.append(firing(alert, FIRES, 1, ',cluster="b"'))
    try_rules({**of_cluster("a", good), **of_cluster("b", CASES[alert])}, promql_expr_test=asked)


def test_the_message_of_an_alert_names_the_gpu_and_the_reason(try_rules: Callable[..., None]) -> None:
    alert = ALERTS["GpuShareGpuUnhealthy"]
    expected = {
        "exp_labels": {"node": "a", "UUID": "GPU-1", "gpu": "1", "reason": "Xid79", **alert["labels"]},
        "exp_annotations": {**alert["annotations"], "summary": "GPU 1 of node a is unhealthy: Xid79"},
    }
    asked = [{"eval_time": "3m", "alertname": alert["alert"], "exp_alerts": [expected]}]
    try_rules({f'gpushare_plugin_gpu_unhealthy{{{GPU},reason="Xid79",pod="p"}}': "1x5"}, alert_rule_test=asked)


@pytest.mark.parametrize(
    "series",
    [{}, of_cluster("a", {"gpushare_ready": "1x9", "gpushare_build_info": "1x9"}) | of_cluster("b", {BUILD: "1x9"})],
)
def test_without_a_controller_at_all_it_is_not_ready(series: Mapping[str, str], try_rules: Callable[..., None]) -> None:
    """Nor in a cluster of which anything else is scraped."""
    try_rules(series, promql_expr_test=[firing("GpuShareControllerNotReady", 5, 1)])


JOINS: Final = blocks("docs/monitoring.md", "promql")
OTHERS: Final = {
    f"gpushare_plugin_gpu_utilization_ratio{{{GPU}}}": "0.5",
    'DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-1",device="nvidia1",modelName="T4",Hostname="a"}': "5",
    'kube_pod_labels{namespace="n",pod="p",label_team="blue",instance="k"}': "1",
    f'gpushare_plugin_container_granted_bytes{{{GPU},namespace="n",pod="p",container="c",limit="mps"}}': "3145728",
    f'gpushare_plugin_container_granted_bytes{{{GPU},namespace="n",pod="q",container="c",limit="mps"}}': "1048576",
    f"gpushare_plugin_gpu_memory_granted_bytes{{{GPU}}}": "4194304",
}
"""Series as other exporters have them, and ours beside them."""
JOINED: Final = (
    {'{namespace="n", pod="p", UUID="GPU-1"}': 0.375, '{namespace="n", pod="q", UUID="GPU-1"}': 0.125},
    {'{UUID="GPU-1"}': 1048576},
    {'{label_team="blue"}': 3145728},
)


@pytest.mark.parametrize(("query", "expected"), list(zip(JOINS, JOINED, strict=True)))
def test_the_joins_on_the_page_work(query: str, expected: Mapping[str, float], try_rules: Callable[..., None]) -> None:
    samples = [{"labels": labels, "value": value} for labels, value in expected.items()]
    series = {name: f"{value}+0x5" for name, value in OTHERS.items()}
    try_rules(series, promql_expr_test=[{"expr": query, "eval_time": "3m", "exp_samples": samples}])


def test_what_the_operator_scrapes_are_ports_that_there_are_and_others_are_let_in_nowhere_else() -> None:
    ports = {
        (name, port["name"])
        for name, spec in tree.workloads(tree.installed())
        for container in spec["containers"]
        for port in container.get("ports", ())
    }
    scraped = {(each["metadata"]["name"], _endpoint(each)["port"]) for each in MONITORS}
    assert scraped == {(names.CONTROLLER, "probes"), (names.PLUGIN, "metrics"), (names.WEBHOOK, "https")} <= ports
    for monitor in MONITORS:
        name = monitor["metadata"]["name"]
        assert monitor["spec"]["selector"] == {"matchLabels": {"app.kubernetes.io/name": name}}
        assert _endpoint(monitor)["honorLabels"]
    [service] = [monitor for monitor in MONITORS if monitor["kind"] == "ServiceMonitor"]
    assert _endpoint(service)["tlsConfig"]["ca"]["secret"] == {"name": names.WEBHOOK_SECRET, "key": "ca.crt"}
    known = tree.one(tree.objects("base"), "Service", names.WEBHOOK)
    assert service["spec"]["selector"]["matchLabels"].items() <= known["metadata"]["labels"].items()
    assert _endpoint(service)["port"] in [port["name"] for port in known["spec"]["ports"]]
    policies = [each for each in COMPONENT if each["kind"] == "NetworkPolicy"]
    admitted = {
        (policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"], port["port"])
        for policy in policies
        for rule in policy["spec"]["ingress"]
        for port in rule["ports"]
    }
    assert admitted == scraped - {(names.WEBHOOK, "https")} | {(names.SCHEDULER, 10259)}  # the first is open to all


def _endpoint(monitor: Mapping[str, Any]) -> Mapping[str, Any]:
    [found] = monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]
    return dict(found)


def test_the_component_has_the_rules_and_the_dashboard_of_the_files() -> None:
    assert tree.one(COMPONENT, "PrometheusRule", "gpushare")["spec"] == RULES
    dashboard = tree.one(COMPONENT, "ConfigMap", "gpushare-dashboard-overview")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["overview.json"]) == json.loads(BOARD.read_text(encoding="utf-8"))


def test_an_alert_says_what_it_means_and_what_to_do() -> None:
    for alert, rule in ALERTS.items():
        assert alert.startswith("GpuShare")
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, alert
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, alert
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        headings = re.findall(r"^### (\w+)$", text(page.replace(".html", ".md")), re.MULTILINE)
        assert (anchor, headings.count(alert)) == (alert.lower(), 1), alert


@pytest.mark.parametrize(
    "address", ["https://docs.example.com/gpushare/0.1.0", "https://docs.example.com/gpushare/0.1.0/"]
)
def test_the_chart_writes_the_address_of_the_site_before_each_runbook(address: str) -> None:
    rules = helm.render({"monitoring": {"rules": {"enabled": True, "runbookUrl": address}}})
    spec = tree.one(rules, "PrometheusRule", "gpushare")["spec"]
    prefixed = [rule["annotations"]["runbook_url"] for group in spec["groups"] for rule in group["rules"]]
    assert prefixed == [f"{address.rstrip('/')}/{rule['annotations']['runbook_url']}" for rule in ALERTS.values()]


def test_prometheus_finds_nothing_wrong_with_the_rules() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", RULES_FILE)


@pytest.mark.parametrize("component", metrics.PAGES)
def test_prometheus_finds_nothing_wrong_with_the_names_and_units(component: str) -> None:
    assert promtool("check", "metrics", text=metrics.PAGES[component]()) == ""


def queries() -> Iterator[tuple[str, str]]:
    """Of alerts, and of the dashboard's panels and variables."""
    for alert, rule in ALERTS.items():
        yield alert, rule["expr"]
    yield from metrics.dashboard_queries(BOARD)


VALUES: Final[Mapping[str, set[str]]] = {
    "health": {health.value for health in GpuHealth},
    "known": {"true", "false"},
    "limit": {limit.value for limit in Limit},
    "outcome": {*(one.value for one in (*bind.Outcome, *Outcome)), "busy", "internal-error", "refused"},
    "reading": {reading.value for reading in UsageReading},
    "reason": {*(reason.value for reason in Reason), *waiting.REASONS},
    "verb": {"bind", "filter", "prioritize"},
    "UUID": {""},
}


@pytest.mark.parametrize(("name", "query"), list(queries()))
def test_a_query_asks_for_series_labels_and_values_that_there_are(name: str, query: str) -> None:
    known = metrics.families()
    asked = re.findall(r"\b((?:gpushare|process)_[a-z_]+)(?:\{([^}]*)\})?", query)
    assert asked, name
    for series, selectors in asked:
        family = series if series in known else re.sub(r"_(total|bucket|sum|count)$", "", series)
        assert family in known, f"{name}: {series}"
        labels = set(re.findall(r"(\w+)\s*[=!]", selectors))
        assert labels <= {*known[family].labels, "le", "job", "instance", "cluster"}, f"{name}: {series} {labels}"
    for label, wanted in re.findall(r'(\w+)[=!]~?"([^"]*)"', query):
        assert wanted == ".*" or set(wanted.split("|")) <= VALUES[label], name


def test_what_is_not_known_is_no_data_in_the_dashboard_and_not_zero(try_rules: Callable[..., None]) -> None:
    panels = dict(metrics.dashboard_queries(BOARD))
    total = {f"gpushare_plugin_gpu_memory_bytes{{{GPU}}}": "8x9"}
    unread = {
        **total,
        'gpushare_plugin_gpu_memory_bytes{node="b",UUID="GPU-2",gpu="0"}': "8x9",
        'gpushare_plugin_gpu_memory_used_bytes{node="b",UUID="GPU-2",gpu="0"}': "4x9",
    }
    for title, series, expected in (
        ("Memory used", {}, []),
        ("Memory used", total, []),
        ("Memory used", unread, [0.5]),
        ("Not healthy", {}, []),
        ("Not healthy", {'gpushare_node_gpus{node="a",health="Healthy"}': "4x9"}, [0]),
        ("Not healthy", {'gpushare_node_gpus{node="a",health="Cordoned"}': "4x9"}, [4]),
    ):
        asked = {
            "expr": panels[title],
            "eval_time": "3m",
            "exp_samples": [{"labels": "{}", "value": v} for v in expected],
        }
        try_rules(series, promql_expr_test=[asked])


def test_prometheus_can_read_every_query_of_the_dashboard(tmp_path: Path) -> None:
    found = list(metrics.dashboard_queries(BOARD))
    recorded = [{"record": f"q:{number}", "expr": query} for number, (_, query) in enumerate(found)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    promtool("check", "rules", path)
    panels = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    for one, other in itertools.combinations((panel["gridPos"] for panel in panels), 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)
    assert all(panel["title"] for panel in panels)
