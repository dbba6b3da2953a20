"""`gpushare scheduler-config`: the configuration with which a kube-scheduler of each version asks the controller."""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gpushare import names
from gpushare.errors import SettingsError
from gpushare.units import ResourceConfig
from gpushare_cli import arguments, kube_scores, yamls
from gpushare_cli.arguments import Command, argument, switch, whole
from gpushare_cli.console import OK, Streams

CONTROLLER_PORT: Final = 12345  # port of the controller's Service, the same as Aliyun's extender has
DEFAULT_URL: Final = f"http://{names.CONTROLLER_SERVICE}.{names.NAMESPACE}.svc:{CONTROLLER_PORT}{names.EXTENDER_PREFIX}"
OTHERS_WEIGHT: Final = 9
"""With a lead of 180 points more than what kube-scheduler's plugins for CPU and memory usually differ by, and less than
the 200 by which it keeps replicas apart once a node has several."""
_VERSION: Final = re.compile(r"v?(?P<major>[0-9]{1,3})\.(?P<minor>[0-9]{1,4})(?:\.[0-9]+)?(?:[+.-][0-9A-Za-z.+_-]*)?")
_SINCE: Final = ((25, "v1"), (23, "v1beta3"), (22, "v1beta2"), (19, "v1beta1"))
_DNS_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_ABOVE_ALL: Final = kube_scores.needed({**kube_scores.UNASKED, **kube_scores.PREFERENCES})
_OF_CLIENT: Final = "PEM file that kube-scheduler reads; needed if the URL is one of the API server's proxy"
MOST_WEIGHT: Final = 10_000  # of an extender, with which kube-scheduler starts

Entry = dict[str, Any]  # an extender of a KubeSchedulerConfiguration, but with seconds


class Kind(StrEnum):  # of configuration files
    CONFIGURATION = "configuration"
    POLICY = "policy"


@dataclass(frozen=True, slots=True, order=True)
class ServerVersion:  # a Kubernetes release
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> "ServerVersion":
        """A release as `kubectl version` or a distribution spells it: 1.30, v1.29.3+k3s1. May raise SettingsError."""
        match = _VERSION.fullmatch(text.strip())
        if match is None:
            raise SettingsError(f"server version {text!r}: write major and minor, such as 1.30 or v1.29.3+k3s1")
        found = cls(int(match["major"]), int(match["minor"]))
        if found.major != 1:
            raise SettingsError(f"server version {text!r}: only Kubernetes 1.x is known")
        return found


_EVEN_SPREADING: Final = ServerVersion(1, 18)  # before, policy files do not know EvenPodsSpreadPriority


def server_version(what: str, **how: Any) -> Any:
    return argument("--server-version", type=ServerVersion.parse, metavar="X.Y", help=what, **how)


def rank_others(what: str) -> Any:
    how: dict[str, Any] = {"nargs": "?", "const": OTHERS_WEIGHT, "metavar": "WEIGHT"}
    return argument("--rank-others", type=whole("--rank-others", most=MOST_WEIGHT), default=None, help=what, **how)


def _read_ca(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise SettingsError(f"extender CA {path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    server: ServerVersion = server_version("of the cluster, such as v1.29.3+k3s1", required=True)
    kind: Kind = arguments.choice(
        "--kind", Kind.CONFIGURATION, "policy: a policy file, for --policy-config-file of 1.22 and older"
    )
    url: str = argument("--extender-url", default=DEFAULT_URL, metavar="URL", help="default: %(default)s")
    ca_pem: bytes = argument(
        "--extender-ca", type=_read_ca, default=b"", metavar="FILE", help="PEM file; needed if the URL is https"
    )
    client_cert: str = argument("--extender-client-cert", metavar="PATH", help=_OF_CLIENT)
    client_key: str = argument("--extender-client-key", metavar="PATH", help=_OF_CLIENT)
    scheduler_name: str = argument(
        "--scheduler-name",
        default=names.SCHEDULER,
        metavar="NAME",
        help="of a second scheduler; empty to change the cluster's own (default: %(default)s)",
    )
    lease_name: str = argument(
        "--lease-name", default=names.SCHEDULER, metavar="NAME", help="of a second scheduler (default: %(default)s)"
    )
    lease_namespace: str = argument(
        "--lease-namespace", default=names.NAMESPACE, metavar="NAME", help="of that lease (default: %(default)s)"
    )
    kubeconfig: str = argument(
        "--scheduler-kubeconfig",
        metavar="PATH",
        help="file that kube-scheduler reads, such as /etc/kubernetes/scheduler.conf; none for a service account",
    )
    whole_gpus: bool = switch(
        "--whole-gpus", what=f"{names.GPU} is gpushare's on every node of the cluster; not where another plugin has it"
    )
    weight: int | None = arguments.number(
        "--weight",
        f"of the controller's scores for GPU pods. By default {kube_scores.needed(kube_scores.UNASKED)} (in a policy"
        f" file {kube_scores.needed(kube_scores.UNASKED_BY_POLICY_FILE)}): its best node wins against kube-scheduler's"
        f" own scores; from {_ABOVE_ALL} on also against what authors prefer",
        most=MOST_WEIGHT,
    )
    others_weight: int | None = rank_others(
        "have the controller rank nodes for pods without GPUs too, so that they leave CPU and memory to GPUs that"
        f" are free; costs a request for each of them (default weight: {OTHERS_WEIGHT})"
    )
    most_allocated: bool = switch(
        "--most-allocated",
        what="nodes with less free CPU and memory come first, for all pods of the scheduler; keeps whole nodes free,"
        " and costs GPUs with the policy dense, see docs/scheduling.md",
    )
    client_qps: int = arguments.number(
        "--client-qps",
        "requests a second that kube-scheduler may send to the API server, and twice as many at once; its own 50 keep"
        " it from placing more pods than that (default: %(default)s)",
        default=500,
        most=100_000,
    )


def configuration(options: Options) -> str:
    """A KubeSchedulerConfiguration as YAML; SettingsError if this version reads none, or options do not fit."""
    api_version = _api_version(options.server)
    value: dict[str, Any] = {
        "apiVersion": f"kubescheduler.config.k8s.io/{api_version}",
        "kind": "KubeSchedulerConfiguration",
        # Else the scheduler of a large cluster samples some nodes, and the extender may reject exactly those.
        "percentageOfNodesToScore": 100,
    }
    if options.scheduler_name and api_version == "v1beta1":
        # Old versions have plain-text ports: only for the node itself.
        value |= {"healthzBindAddress": "127.0.0.1:10251", "metricsBindAddress": "127.0.0.1:10251"}
    kubeconfig = {"kubeconfig": options.kubeconfig} if options.kubeconfig else {}
    value["clientConnection"] = {**kubeconfig, "qps": options.client_qps, "burst": 2 * options.client_qps}
    value["leaderElection"] = {"leaderElect": True}
    if options.scheduler_name:
        value["leaderElection"] |= {
            "resourceLock": "leases",  # the default of 1.19 is an older kind
            "resourceName": _dns_name("lease name", options.lease_name),
            "resourceNamespace": _dns_name("lease namespace", options.lease_namespace),
        }
    strategy = kube_scores.most_allocated(api_version) if options.most_allocated else {}
    value["profiles"] = [{"schedulerName": _scheduler_name(options), **strategy}]
    value["extenders"] = [
        {**entry, "httpTimeout": f"{entry['httpTimeout']}s"} for entry in _entries(options, kube_scores.UNASKED)
    ]
    return yamls.dump(value)


def policy(options: Options) -> str:
    """A Policy file as JSON; SettingsError likewise. It names neither scheduler nor lease: see `policy_flags`."""
    if options.server > ServerVersion(1, 22):
        raise SettingsError(
            f"server version {options.server}: policy files were removed in 1.23; leave out --kind policy to get a"
            " KubeSchedulerConfiguration"
        )
    if options.most_allocated and options.server < _EVEN_SPREADING:
        raise SettingsError(
            f"server version {options.server}: a policy file with --most-allocated needs {_EVEN_SPREADING} or newer"
        )
    entries = list(_entries(options, kube_scores.UNASKED_BY_POLICY_FILE))
    for entry in entries:
        entry["enableHttps"] = entry.pop("enableHTTPS")
        entry["httpTimeout"] = int(entry["httpTimeout"] * 10**9)  # a Go time.Duration without a text form
    priorities = {"priorities": kube_scores.priorities_most_allocated()} if options.most_allocated else {}
    return yamls.dump_json({"kind": "Policy", "apiVersion": "v1", **priorities, "extenders": entries})


def policy_flags(options: Options, path: str = "/etc/kubernetes/scheduler-policy.json") -> Sequence[str]:
    """Flags of kube-scheduler that say what a Policy file cannot."""
    flags = [f"--policy-config-file={path}"]
    flags += [f"--kube-api-qps={options.client_qps}", f"--kube-api-burst={2 * options.client_qps}"]
    if options.kubeconfig:
        flags.append(f"--kubeconfig={options.kubeconfig}")
    if options.scheduler_name:
        flags += [
            f"--scheduler-name={_scheduler_name(options)}",
            "--leader-elect-resource-lock=leases",
            f"--leader-elect-resource-name={_dns_name('lease name', options.lease_name)}",
            f"--leader-elect-resource-namespace={_dns_name('lease namespace', options.lease_namespace)}",
        ]
    return flags


def for_others(options: Options, weight: int) -> Entry:
    """Ranks nodes for pods without GPUs, and does nothing else: without an answer they are scheduled as ever."""
    return {
        "urlPrefix": _url(options.url),
        "prioritizeVerb": names.OTHERS_VERB,
        "weight": weight,
        **_tls(options),
        "nodeCacheCapable": True,
        "ignorable": True,
        "httpTimeout": names.OTHERS_TIMEOUT_S,
    }


def _for_gpus(options: Options, weight: int) -> Entry:
    return {
        "urlPrefix": _url(options.url),
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": weight,
        "bindVerb": "bind",
        **_tls(options),
        "nodeCacheCapable": True,
        # Not ignored: the sums that the scheduler counts by itself keep out most nodes, and make it preempt.
        "managedResources": [
            {"name": name, "ignoredByScheduler": False}
            for name in ResourceConfig(whole_gpus=options.whole_gpus).resources
        ],
        "ignorable": False,
        "httpTimeout": names.EXTENDER_TIMEOUT_S,
    }


def _entries(options: Options, unasked: Mapping[str, int]) -> Iterator[Entry]:
    yield _for_gpus(options, options.weight or kube_scores.needed(unasked))
    if options.others_weight is not None:
        yield for_others(options, options.others_weight)


def _tls(options: Options) -> Entry:
    url, client = options.url, bool(options.client_cert)
    if client != bool(options.client_key):
        raise SettingsError("extender client certificate: give --extender-client-cert and --extender-client-key")
    if not url.startswith("https:"):
        if options.ca_pem or client:
            what = "a CA" if options.ca_pem else "a client certificate"
            raise SettingsError(f"extender URL {url!r}: {what} is given, but the URL is not https")
        return {"enableHTTPS": False}
    if not options.ca_pem:
        # kube-scheduler would switch verification off without a word.
        raise SettingsError(f"extender URL {url!r}: https needs the CA of its certificate; give --extender-ca FILE")
    if b"-----BEGIN CERTIFICATE-----" not in options.ca_pem:
        raise SettingsError("extender CA: no PEM certificate in it")
    if "/proxy/" in url and not client:
        raise SettingsError(
            f"extender URL {url!r}: the API server's proxy must know kube-scheduler, which sends it no token; give"
            " --extender-client-cert PATH and --extender-client-key PATH"
        )
    files = {"certFile": options.client_cert, "keyFile": options.client_key} if client else {}
    return {"enableHTTPS": True, "tlsConfig": {"caData": base64.b64encode(options.ca_pem).decode(), **files}}


def _url(url: str) -> str:
    problem = ""
    try:
        parts = urlsplit(url)
        _ = parts.port  # reading it checks it
        if parts.scheme not in {"http", "https"}:
            problem = "must begin with http:// or https://"
        elif not parts.hostname:
            problem = "has no host"
        elif parts.query or parts.fragment or parts.username:
            problem = "must have neither user, query nor fragment"
    except ValueError as error:
        problem = str(error)
    if problem:
        raise SettingsError(f"extender URL {url!r}: {problem}; write something like {DEFAULT_URL}")
    return url.rstrip("/")


def _api_version(server: ServerVersion) -> str:
    for minor, name in _SINCE:
        if server >= ServerVersion(1, minor):
            return name
    raise SettingsError(
        f"server version {server}: KubeSchedulerConfiguration is supported from 1.19; use --kind policy"
    )


def _scheduler_name(options: Options) -> str:
    return _dns_name("scheduler name", options.scheduler_name) if options.scheduler_name else names.DEFAULT_SCHEDULER


def _dns_name(what: str, text: str) -> str:
    if not _DNS_NAME.fullmatch(text):
        raise SettingsError(
            f"{what} {text!r}: write lower-case letters, digits, '-' and '.', such as {names.SCHEDULER}"
        )
    return text


def run(streams: Streams, options: Options) -> int:
    """Print a configuration for kube-scheduler. The exit code."""
    if options.kind is Kind.POLICY:
        streams.out.write(policy(options))
        streams.note(f"start kube-scheduler with {' '.join(policy_flags(options))}")
    else:
        streams.out.write(configuration(options))
    if options.scheduler_name and (options.others_weight is not None or options.most_allocated):
        streams.note(
            f"only pods that name the scheduler {options.scheduler_name} are ranked by it; pods without GPUs usually go"
            " to the cluster's own, for which give --scheduler-name ''"
        )
    return OK


COMMAND: Final = Command(
    name="scheduler-config",
    what="configuration of kube-scheduler",
    exit_codes="done; 2 wrong arguments.",
    examples=(
        ("For kube-scheduler of Kubernetes 1.30", "gpushare scheduler-config --server-version 1.30"),
        (
            "Into a file for an old kube-scheduler",
            "gpushare scheduler-config --server-version 1.20 --kind policy > policy.cfg",
        ),
    ),
    description="Print the configuration with which kube-scheduler asks the controller about shared GPUs.",
    options=Options,
    of_cluster=False,
    run=lambda call: run(call.streams, call.options(Options)),
)
