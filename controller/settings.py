"""Settings of the controller."""

from dataclasses import dataclass

from gpushare import names, units
from gpushare.errors import SettingsError
from gpushare.model.request import DEFAULT_POLICY, Policy
from gpushare.runtime import options
from gpushare.runtime.options import between, boolean, choice, one_of, option, port as a_port, positive
from gpushare.units import MemoryUnit


def _lease_seconds(text: str) -> float:
    value = positive(text)
    if value < 1:
        raise ValueError("write at least 1; a Lease counts whole seconds")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Scheduler extender for shared GPUs: filter, prioritize, preempt and bind. One replica leads, the others wait."""

    bind_address: str = option("0.0.0.0", "address that the extender listens on")  # noqa: S104 - a Service's pod
    port: int = option(12345, "port of the extender, with /readyz and /metrics", parse=a_port)
    probe_port: int = option(
        12346, "port of /livez, /readyz and /metrics, which never wait for the extender", parse=a_port
    )
    threads: int = option(
        32,
        "requests that are answered at the same time",
        parse=between(2, 256, "a number of threads"),  # binds leave at least one to filters
    )
    memory_unit: MemoryUnit = option(
        units.GIB,
        "what one aliyun.com/gpu-mem is, the same as the device plugin's: GiB, MiB, or 256MiB",
        parse=MemoryUnit.parse,
    )
    whole_gpus: bool = option(
        False,
        "whether nvidia.com/gpu is served by this project's plugin, which then hands out whole GPUs beside shared ones;"
        " false where another plugin has it",
        parse=boolean,
    )
    gpu_policy: Policy = option(
        DEFAULT_POLICY,
        f"how nodes and GPUs are chosen for pods that do not say: {Policy.known()}",
        parse=one_of(Policy),
    )
    refusal_detail: str = option(
        "full",
        "what Events and answers to kube-scheduler say of nodes on which a pod does not fit: full (what is free,"
        " models, names of nodes), or reduced (the pod's request and the kind of reason)",
        parse=choice("full", "reduced"),
    )
    dra: bool = option(
        False,
        "whether ResourceClaims are watched (Kubernetes 1.36): to say why their pods wait, and to rank nodes for them",
        parse=boolean,
    )
    kubeconfig: str = option("", "kubeconfig file; empty for the pod's service account")
    namespace: str = option(
        names.NAMESPACE,
        f"namespace of the leader election's Lease, of this program's pods, and of the ConfigMap {names.HAND_OVER}",
    )
    pod: str = option("", "name of the pod that this runs in, which gets the leader's label; empty for the host's name")
    lease: str = option(names.LEASE, "name of the leader election's Lease")
    identity: str = option("", "name of this candidate in the Lease; empty for the host's name")
    lease_seconds: float = option(
        15.0, "seconds without renewal after which another replica may lead", parse=_lease_seconds
    )
    renew_seconds: float = option(
        10.0, "seconds without a successful renewal after which a leader follows again", parse=positive
    )
    retry_seconds: float = option(2.0, "seconds between renewals", parse=positive)
    bind_seconds: float = option(2.0, "deadline of a Binding in seconds; connecting counts apart", parse=positive)
    in_doubt_seconds: float = option(
        120.0, "seconds for which memory stays reserved when no one knows whether a Binding arrived", parse=positive
    )
    placeholders: int = option(
        0,
        "pods at most, in the namespace gpushare-placeholders, that ask an autoscaler for a node where nodes"
        " have enough in total for a waiting pod, but no single GPU has room; 0: none",
        parse=between(0, 100, "a number of pods"),
    )
    placeholder_seconds: float = option(
        900.0, "seconds after which such a pod is removed if no node has come", parse=positive
    )
    claim_templates: bool = option(
        False,
        "whether templates are made for pods whose gpu-mem the webhook has turned into ResourceClaims",
        parse=boolean,
    )
    log_level: str = options.log_level()

    def __post_init__(self) -> None:
        if not self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise SettingsError(
                f"--retry-seconds {self.retry_seconds:g} < --renew-seconds {self.renew_seconds:g}"
                f" < --lease-seconds {self.lease_seconds:g} must hold"
            )
        # A leader may send a Binding until the last moment of its lead. It takes one deadline to be sent and one more
        # to be answered; anyone who leads next must not choose before that.
        margin = self.lease_seconds - self.renew_seconds
        if 2 * self.bind_seconds >= margin:
            raise SettingsError(
                f"--bind-seconds {self.bind_seconds:g}: twice this must be less than --lease-seconds minus"
                f" --renew-seconds, which is {margin:g}, or a Binding of a former leader may still be on its way"
            )
