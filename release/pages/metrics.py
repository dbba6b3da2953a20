"""docs/reference/metrics.md: every metric with its use, from what the components expose, and every alert.

The pages of metrics here have everything that a component can expose; the end-to-end test compares them with those of
real processes.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client.parser import text_string_to_metric_families

import controller.main
from controller.cluster_table import ClusterTable
from controller.leadership import Leadership
from controller.metrics import Metrics as ControllerMetrics
from controller.outlooks import Outlooks
from controller.reconcile.node_requests import Refusals
from controller.state import ClusterState
from controller.supervisor import Fence
from deviceplugin import metrics as plugin_metrics
from deviceplugin.causes import Cause, Code
from deviceplugin.decide import Reason
from deviceplugin.usage.join import GpuTotal, NodeUsage, Row, UsageReading
from gpushare import names
from gpushare.cluster import node_records, pod_records
from gpushare.identity import ContainerName, GpuUuid, NodeName
from gpushare.model.gpu import GpuHealth, Limit
from gpushare.runtime.clock import SystemClock
from gpushare.units import ResourceConfig
from testing.builders import make_gpu, make_grant, make_inventory, make_node, make_ref
from testing.cli.podding import bound
from testing.fakes.kube import FakeKube
from webhook.metrics import Metrics as WebhookMetrics, Outcome

ROOT: Final = Path(__file__).parents[2]
NODE: Final = NodeName("node-a")
EVERYWHERE: Final = "Every component"


def controller_page() -> str:
    """Of a leader with a node that holds more than it has."""
    clock, config = SystemClock(), ResourceConfig()
    state = ClusterState(resource_config=config)
    index = state.index
    index.set_node(NODE, node_records.read(make_node(make_inventory(16, 8))))
    for name in ("a", "b"):
        record = pod_records.read(bound(name, make_grant(0, gib=16, compute_percent=60)), config)
        assert record is not None
        index.set_pod(record)
    table, fence = ClusterTable(state, clock), Fence(clock)
    leadership = Leadership(
        api=FakeKube(), clock=clock, fence=fence, state=state, table=table, refusals=Refusals(clock)
    )
    outlooks = Outlooks(state.index, table, clock)
    metrics = ControllerMetrics(clock)
    metrics.watch(
        state,
        controller.main.readings(leadership, outlooks),
        waiting=lambda: leadership.reconciler.waiting.counts,
        is_read=lambda: True,
    )
    metrics.answered("bind", "bound", 0.01)
    metrics.filtered(fits=1, failed=1, unresolvable=1)
    metrics.preempted(nodes={"chosen": 1}, victims={"kept": 1})
    return metrics.page().body.decode()


def plugin_page() -> str:
    """Of a plugin with a watchdog, a GPU that is unhealthy and a container that uses what it was granted."""
    gpus = (
        replace(make_gpu(0, 16), limit=Limit.CGROUP),
        replace(make_gpu(1, 8, health=GpuHealth.UNHEALTHY), reason=Cause(Code.ECC, "x")),
    )
    uuid = gpus[0].uuid
    row = Row(pod=make_ref("a"), container=ContainerName("main"), gpu=GpuUuid(uuid), granted_mib=1024, used=1, peak=1)
    usage = NodeUsage(
        node=NODE,
        gpus=gpus,
        totals={uuid: GpuTotal(usable_mib=16384, granted_mib=1024, granted_percent=25, pods=1, used=1)},
        rows=(row,),
        foreign={uuid: 0},
        measured={uuid: {"utilization_ratio": 0.5, "temperature_celsius": 40, "power_watts": 70}},
        reading=UsageReading.ON,
        processes=(1, 0),
        over=0,
    )
    starts = {("accepted", ""): 0, **{("refused", reason.value): 0 for reason in Reason}}
    actions = {("report", "done"): 1}
    claims = dict.fromkeys(("prepared", "refused", "unprepared"), 1)
    return plugin_metrics.page(usage, starts, actions, NODE, [(make_gpu(2, 16), 0)], claims).decode()


def webhook_page() -> str:
    """After one review."""
    metrics = WebhookMetrics(lambda: 1.0, lambda: 2.0)
    metrics.expect("mutate")
    metrics.answered("mutate", Outcome.MUTATED, seconds=0.01)
    return metrics.exposition().decode()


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    names.WEBHOOK: webhook_page,
    names.CONTROLLER: controller_page,
    names.PLUGIN: plugin_page,
}

USES: Final[Mapping[str, str]] = {
    "gpushare_build_info": "versions that differ after an upgrade",
    "process_cpu_seconds": "CPU of a component: its `rate`",
    "process_resident_memory_bytes": "memory, against the container's limit",
    "process_virtual_memory_bytes": "beside resident memory, when looking for a leak",
    "process_start_time_seconds": "restarts: its `changes`",
    "process_open_fds": "against `process_max_fds`",
    "process_max_fds": "the limit of open files",
    "gpushare_webhook_admissions": "untouched, mutated, denied, malformed, failed; alert on failed",
    "gpushare_webhook_admission_duration_seconds": "how long creating pods waits for the webhook",
    "gpushare_webhook_certificate_ttl_seconds": "alert below 7 days: the webhook could not renew it",
    "gpushare_webhook_ca_ttl_seconds": "alert below 30 days",
    "gpushare_leading": "",
    "gpushare_ready": "alert if the sum is not 1: GPU pods wait",
    "gpushare_extender_requests": "`out-of-time`: binds that were not sent, because the API server is slow",
    "gpushare_extender_request_duration_seconds": "latency of binds and of every other verb",
    "gpushare_filter_nodes": "how many it refuses",
    "gpushare_preempt_nodes": "as-given, chosen (other victims than kube-scheduler's), dropped (no eviction helps"
    " there), late (no time)",
    "gpushare_preempt_victims": "",
    "gpushare_node_memory_total_bytes": "capacity by node, also of GPUs that take no pods",
    "gpushare_node_memory_usable_bytes": "capacity that counts: granted over usable says how full a node is",
    "gpushare_node_memory_grantable_bytes": "",
    "gpushare_node_memory_granted_bytes": "how full nodes are",
    "gpushare_node_pods": "",
    "gpushare_node_gpus": "Healthy, Unhealthy, Cordoned by an administrator",
    "gpushare_namespace_memory_granted_bytes": "who holds what: charge-back, quota; the 1,000 largest, and `_others`",
    "gpushare_namespace_pods": "",
    "gpushare_pods_waiting": "alert if it lasts; the reason is that of most nodes with GPUs. NotTried: kube-scheduler"
    " has yet to try; NotJudged: looked at soon; Fits: GPUs are free, something else hinders. The 1,000 largest, and"
    " `_others`, which has every reason",
    "gpushare_gpu_over_committed_bytes": "alert if there is any; at most 1,000 series",
    "gpushare_gpu_over_committed_compute_ratio": "alert if there is any; at most 1,000 series",
    "gpushare_reservations_unconfirmed": "Bindings on their way; many for long: the API server does not answer",
    "gpushare_pods_unreadable": "alert above 0: `gpushare doctor` names the pods",
    "gpushare_pods_bound_late": "pods that bypass the scheduler",
    "gpushare_pods_recreated": "",
    "gpushare_rejected_pods_deleted": "after a node's restart; many for long: a node rejects pods again and again",
    "gpushare_ledger_differences": "alert above 0: the ledger is wrong",
    "gpushare_outlook_epoch": "whether the leader learns what is typical, by which `dense` and `fgd` rank nodes",
    "gpushare_outlook_age_seconds": "seconds while the cluster changes, in a large one up to a minute",
    "gpushare_watch_nodes_age_seconds": "whether the leader hears of nodes; it gives up the lead after 180 s",
    "gpushare_watch_pods_age_seconds": "the same",
    "gpushare_watch_disruption_budgets_age_seconds": "",
    "gpushare_watch_unhealthy_gpus_age_seconds": "",
    "gpushare_watch_namespaces_age_seconds": "",
    "gpushare_watch_claims_age_seconds": "",
    "gpushare_plugin_gpus": "mig, cgroup, mps, hami-core, watchdog, advisory",
    "gpushare_plugin_gpu_memory_bytes": "capacity by GPU, with its model",
    "gpushare_plugin_gpu_memory_usable_bytes": "capacity that counts",
    "gpushare_plugin_gpu_memory_grantable_bytes": "",
    "gpushare_plugin_gpu_memory_granted_bytes": "how full a GPU is",
    "gpushare_plugin_gpu_memory_used_bytes": "what grants are used for, where"
    " [usage](../limits.md#usage-and-the-watchdog) is read",
    "gpushare_plugin_gpu_compute_granted_ratio": "compute that is left",
    "gpushare_plugin_gpu_pods": "how many share a GPU",
    "gpushare_plugin_gpu_foreign_bytes": "memory that no one granted: other plugins, processes outside of Kubernetes",
    "gpushare_plugin_gpu_utilization_ratio": "idle GPUs; where the driver tells it, and not of MIG instances",
    "gpushare_plugin_gpu_temperature_celsius": "where the driver tells it",
    "gpushare_plugin_gpu_power_watts": "where the driver tells it",
    "gpushare_plugin_gpu_healthy": "share of time in which a GPU was usable: its `avg_over_time`",
    "gpushare_plugin_gpu_unhealthy": "[a code](#reasons); alert on it; an empty UUID: a GPU that cannot be shared",
    "gpushare_plugin_gpu_limit_info": "[a code](#reasons); where limits hold; alert when one is lost",
    "gpushare_plugin_container_granted_bytes": "who holds what of which GPU",
    "gpushare_plugin_container_used_bytes": "waste and overuse, beside what is granted; `_others` stands for the pod's"
    " containers that hold nothing of that GPU",
    "gpushare_plugin_container_peak_bytes": "the right size of a request",
    "gpushare_plugin_containers_left_out": "alert above 0: a node has more than 2,048 containers on its GPUs",
    "gpushare_plugin_containers_over_grant": "alert above 0; only with a watchdog",
    "gpushare_plugin_usage_info": "",
    "gpushare_plugin_gpu_processes": "alert if none is known for long: the driver names processes as another process"
    " namespace does",
    "gpushare_plugin_watchdog_actions": "report, evict, terminate, kill, and whether it worked",
    "gpushare_plugin_claimed_bytes": "how full a GPU of [mode dra](../claims.md) is",
    "gpushare_plugin_claims": "prepared, refused, unprepared; alert on refusals that go on",
    "gpushare_plugin_starts": "[the reasons](../troubleshoot.md#the-pod-is-bound-but-its-container-does-not-start)",
}


CODES: Final[Mapping[Code, str]] = {
    Code.XID: "and a number, such as `Xid79`: the driver reported [that Xid](xids.md)",
    Code.ECC: "the driver reported an uncorrectable memory error",
    Code.ACTION: "the driver asks for something to be done, such as a reset",
    Code.DRIVER_SILENT: "the driver does not answer, or cannot be opened",
    Code.DRIVER_ERROR: "the driver answers with an error that has no code here",
    Code.DRIVER_CHANGED: "the driver has another version than the library that the plugin has loaded; it restarts",
    Code.NOT_LISTED: "the driver no longer lists the GPU",
    Code.MIG_MODE: "the GPU was put into MIG mode",
    Code.MIG_EMPTY: "the GPU is in MIG mode and has no instances",
    Code.MIG_GONE: "the MIG instance no longer exists",
    Code.MIG: "this limit cannot be held on MIG instances",
    Code.MEMORY_UNKNOWN: "the driver does not say how much memory it has (`--unified-memory`)",
    Code.NOT_HANDED_OVER: "the way to hand GPUs over that is demanded of the node does not work there",
    Code.NOT_LIMITED: "no limit that is demanded of the node can be held",
    Code.SIMULATED: "the GPU is simulated: so is its fault, and no driver can hold a limit",
    Code.NOT_ASKED: "stronger limits are not in the node's order",
    Code.NO_MOUNTS: "the limit needs mounts, and the node hands GPUs over by envvar",
    Code.COMPUTE_MODE: "the compute mode of the GPU does not fit the limit",
    Code.NO_CGROUP: "the plugin cannot make a cgroup on the node",
    Code.NOT_SUPPORTED: "driver or kernel hold no limits for cgroups on this GPU",
    Code.DRIVER_OLD: "the driver is older than r615",
    Code.MPS_SILENT: "the MPS daemon does not run or does not answer",
    Code.LIBRARY: "HAMi-core was not supplied, or its files are not right",
    Code.MODE: "the GPU is to change its mode, and waits until no one holds it",
    Code.DRA: "the GPU is of mode dra, and this cluster or node cannot have claims",
    Code.OTHER: "none of these",
}


@dataclass(frozen=True, slots=True)
class Family:
    """A metric."""

    component: str
    kind: str
    meaning: str
    labels: tuple[str, ...]


@functools.cache
def families() -> Mapping[str, Family]:
    """Of all components; counters without `_total`."""
    found: dict[str, Family] = {}
    for component, page in PAGES.items():
        for family in text_string_to_metric_families(page()):
            assert family.samples, f"{family.name}: the page has no sample of it"
            where = EVERYWHERE if family.name in found else component
            labels = {label for sample in family.samples for label in sample.labels if label != "le"}
            found[family.name] = Family(where, family.type, family.documentation, tuple(sorted(labels)))
    return found


def dashboard_queries(path: Path) -> Iterator[tuple[str, str]]:
    """Title and query of every panel, with variables replaced as Grafana does if all is chosen."""
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], _filled(target["expr"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            series, label = variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
            yield variable["name"], _filled(f"count by ({label}) ({series})")


def _filled(query: str) -> str:
    for name in ("$cluster", "$node", "$namespace"):
        query = query.replace(name, ".*")
    for name, value in (("$__rate_interval", "1m"), ("$__range", "1h")):
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


REASONS: Final = """The label `reason` of `gpushare_plugin_gpu_unhealthy` and `gpushare_plugin_gpu_limit_info` is \
one of these codes. Of several causes it is the first; of limits, that of the strongest one in the node's order that \
does not hold. The whole sentence is in the inventory: `gpushare doctor`, `kubectl inspect gpushare --limits`."""
HEAD: Final = """# Metrics

What Prometheus reads from each component, and the alerts of [rules.yaml](../../manifests/chart/files/rules.yaml); \
[monitoring](../monitoring.md) says how to have them scraped, and what bounds their number.
This page is written by `make docs` from the code.
"""


def page() -> str:
    """The page."""
    found = families()
    assert found.keys() == USES.keys(), found.keys() ^ USES.keys()
    sections = [HEAD]
    for component in (*PAGES, EVERYWHERE):
        rows = [_row(name, family) for name, family in found.items() if family.component == component]
        head = ["| Metric | Kind | Labels | Meaning and use |", "|---|---|---|---|"]
        sections.append("\n".join([f"## {component}", "", *head, *rows, ""]))
    assert CODES.keys() == set(Code)
    codes = [f"| `{code}` | {meaning} |" for code, meaning in CODES.items()]
    head = ["## Reasons", "", REASONS, "", "| Code | Meaning |", "|---|---|"]
    return "\n".join([*sections, "\n".join([*head, *codes, ""]), _alerts()])


def _row(name: str, family: Family) -> str:
    full = f"{name}_total" if family.kind == "counter" else name
    labels = ", ".join(f"`{label}`" for label in family.labels)
    meaning = family.meaning.replace("|", "\\|").removesuffix(".")
    told = "; ".join(filter(None, (meaning, USES[name])))
    return f"| `{full}` | {family.kind} | {labels} | {told} |"


def _alerts() -> str:
    document: Any = yaml.safe_load((ROOT / "manifests/chart/files/rules.yaml").read_text(encoding="utf-8"))
    found = ["## Alerts", "", "Each alert's `runbook_url` leads here.", ""]
    for rule in (rule for group in document["groups"] for rule in group["rules"]):
        when = f"after {rule['for']}" if "for" in rule else "at once"
        found += [f"### {rule['alert']}", "", f"{rule['labels']['severity'].capitalize()}, {when}:", ""]
        found += ["```promql", rule["expr"], "```", "", rule["annotations"]["description"], ""]
    return "\n".join(found)
