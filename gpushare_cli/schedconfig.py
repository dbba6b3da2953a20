"""Writes the configuration with which a kube-scheduler of a given version calls the extender. Pure.

The same extender is spelled differently over the versions: KubeSchedulerConfiguration changed its API version four
times, and before it there was the Policy file, which kube-scheduler read up to 1.22.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final
from urllib.parse import urlsplit

from gpushare import names
from gpushare.errors import SettingsError
from gpushare.resource_config import ResourceConfig
from gpushare_cli import yamls

CONTROLLER_PORT: Final = 12345
"""Port of the controller's Service, the same as Aliyun's extender has."""
DEFAULT_URL: Final = f"http://{names.CONTROLLER_SERVICE}.{names.NAMESPACE}.svc:{CONTROLLER_PORT}{names.EXTENDER_PREFIX}"
DEFAULT_SCHEDULER: Final = "default-scheduler"
_VERSION: Final = re.compile(r"v?(?P<major>[0-9]{1,3})\.(?P<minor>[0-9]{1,4})(?:\.[0-9]+)?(?:[+.-][0-9A-Za-z.+_-]*)?")
_SINCE: Final = ((25, "v1"), (23, "v1beta3"), (22, "v1beta2"), (19, "v1beta1"))
_DNS_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


class Kind(Enum):
    """The two families of configuration files."""

    CONFIGURATION = "configuration"
    POLICY = "policy"


@dataclass(frozen=True, slots=True, order=True)
class ServerVersion:
    """A Kubernetes release."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> "ServerVersion":
        """Read a release as `kubectl version` or a distribution spells it: 1.30, v1.29.3+k3s1, v1.36.2-eks-1.

        Raises:
            SettingsError: no such release.
        """
        match = _VERSION.fullmatch(text.strip())
        if match is None:
            raise SettingsError(f"server version {text!r}: write major and minor, such as 1.30 or v1.29.3+k3s1")
        found = cls(int(match["major"]), int(match["minor"]))
        if found.major != 1:
            raise SettingsError(f"server version {text!r}: only Kubernetes 1.x is known")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the configuration is for."""

    server: ServerVersion
    url: str = DEFAULT_URL
    """Prefix of the extender's paths, as kube-scheduler reaches it."""
    scheduler_name: str = names.SCHEDULER
    """Empty to change the cluster's own scheduler, else the name of a second one."""
    lease_name: str = names.SCHEDULER
    lease_namespace: str = names.NAMESPACE
    """A second scheduler needs a lease of its own; the cluster's scheduler keeps its default."""
    kubeconfig: str = ""
    """Path that kube-scheduler itself reads; empty to use its service account."""
    ca_pem: bytes = b""
    """CA of an extender that is reached by https."""
    whole_gpus: bool = False
    """Whether nvidia.com/gpu is this project's in the whole cluster. Where a node has it from another plugin, pods that
    ask for it would find no node: the extender knows of no GPUs there."""


def configuration(options: Options) -> str:
    """A KubeSchedulerConfiguration as YAML.

    Raises:
        SettingsError: this version reads none, or the options contradict each other.
    """
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
    if options.kubeconfig:
        value["clientConnection"] = {"kubeconfig": options.kubeconfig}
    value["leaderElection"] = {"leaderElect": True}
    if options.scheduler_name:
        value["leaderElection"] |= {
            "resourceLock": "leases",  # the default of 1.19 is an older kind
            "resourceName": _dns_name("lease name", options.lease_name),
            "resourceNamespace": _dns_name("lease namespace", options.lease_namespace),
        }
    value["profiles"] = [{"schedulerName": _scheduler_name(options)}]
    value["extenders"] = [_extender(options) | {"httpTimeout": f"{names.EXTENDER_TIMEOUT_S}s"}]
    return yamls.dump(value)


def policy(options: Options) -> str:
    """A Policy file as JSON. It names neither scheduler nor lease: see `policy_flags`.

    Raises:
        SettingsError: this version reads none, or the options contradict each other.
    """
    if options.server > ServerVersion(1, 22):
        raise SettingsError(
            f"server version {options.server}: policy files were removed in 1.23; leave out --kind policy to get a"
            " KubeSchedulerConfiguration"
        )
    extender = _extender(options)
    extender["enableHttps"] = extender.pop("enableHTTPS")
    # A Go time.Duration without a text form: nanoseconds.
    extender["httpTimeout"] = names.EXTENDER_TIMEOUT_S * 10**9
    value = {"kind": "Policy", "apiVersion": "v1", "extenders": [extender]}
    return yamls.dump_json(value)


def policy_flags(options: Options, path: str = "/etc/kubernetes/scheduler-policy.json") -> Sequence[str]:
    """Flags of kube-scheduler that say what a Policy file cannot."""
    flags = [f"--policy-config-file={path}"]
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


def _api_version(server: ServerVersion) -> str:
    for minor, name in _SINCE:
        if server >= ServerVersion(1, minor):
            return name
    raise SettingsError(
        f"server version {server}: KubeSchedulerConfiguration is supported from 1.19; use --kind policy"
    )


def _extender(options: Options) -> dict[str, Any]:
    resource_config = ResourceConfig(whole_gpus=options.whole_gpus)
    return {
        "urlPrefix": _url(options.url),
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": 1,
        "bindVerb": "bind",
        **_tls(options),
        "nodeCacheCapable": True,
        # Not ignored: the sums that the scheduler counts by itself keep out most nodes, and make it preempt.
        "managedResources": [{"name": name, "ignoredByScheduler": False} for name in resource_config.resources],
        "ignorable": False,
    }


def _tls(options: Options) -> dict[str, Any]:
    if not options.url.startswith("https:"):
        if options.ca_pem:
            raise SettingsError(f"extender URL {options.url!r}: a CA is given, but the URL is not https")
        return {"enableHTTPS": False}
    if not options.ca_pem:
        # kube-scheduler would switch verification off without a word.
        raise SettingsError(
            f"extender URL {options.url!r}: https needs the CA of its certificate; give --extender-ca FILE"
        )
    if b"-----BEGIN CERTIFICATE-----" not in options.ca_pem:
        raise SettingsError("extender CA: no PEM certificate in it")
    return {"enableHTTPS": True, "tlsConfig": {"caData": base64.b64encode(options.ca_pem).decode()}}


def _url(text: str) -> str:
    problem = _url_problem(text)
    if problem:
        raise SettingsError(f"extender URL {text!r}: {problem}; write something like {DEFAULT_URL}")
    return text.rstrip("/")


def _url_problem(text: str) -> str:
    try:
        parts = urlsplit(text)
        host = parts.hostname
        _ = parts.port  # reading it checks it
    except ValueError as error:
        return str(error)
    if parts.scheme not in {"http", "https"}:
        return "must begin with http:// or https://"
    if not host:
        return "has no host"
    if parts.query or parts.fragment or parts.username:
        return "must have neither user, query nor fragment"
    return ""


def _scheduler_name(options: Options) -> str:
    return _dns_name("scheduler name", options.scheduler_name) if options.scheduler_name else DEFAULT_SCHEDULER


def _dns_name(what: str, text: str) -> str:
    if not _DNS_NAME.fullmatch(text):
        raise SettingsError(
            f"{what} {text!r}: write lower-case letters, digits, '-' and '.', such as {names.SCHEDULER}"
        )
    return text
