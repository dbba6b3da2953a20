"""Settings of the webhook; those of its certificates are inherited."""

from dataclasses import dataclass

from certs.settings import CertSettings
from gpushare import names, units
from gpushare.runtime import options
from gpushare.runtime.options import option
from gpushare.units import MemoryUnit, ResourceConfig
from webhook.runtimeclass import Mode


def _resources(text: str) -> tuple[str, ...]:
    resources = options.names(text)
    for name in resources:
        if "/" not in name or name.endswith("/") or "*" in name[:-1]:
            raise ValueError(
                f"{name!r} is no name of a resource; write names such as {names.GPU}, or beginnings such as"
                " nvidia.com/mig-*"
            )
    return resources


@dataclass(frozen=True, kw_only=True)
class Settings(CertSettings):
    """Admission webhook of gpushare: completes pods that ask for a share of a GPU and protects their bindings."""

    address: str = option("0.0.0.0", "address to listen on; [::] for IPv6")  # noqa: S104 - a pod's only interface
    port: int = option(8443, "TLS port of webhook, probes and metrics", parse=options.port)
    threads: int = option(
        32, "requests that are answered at the same time", parse=options.between(1, 512, "a number of threads")
    )
    memory_unit: MemoryUnit = option(
        units.GIB, f"what one unit of {names.GPU_MEM} is: GiB, MiB or a multiple", parse=MemoryUnit.parse
    )
    whole_gpus: bool = option(
        False,
        f"true or false: whether {names.GPU} is served by this project's plugin, which then hands out whole GPUs beside"
        " shared ones; the same in the whole cluster",
        parse=options.boolean,
    )
    scheduler_name: str = option(
        names.SCHEDULER, "schedulerName of GPU pods that name none; empty to leave the cluster's default"
    )
    extender_schedulers: tuple[str, ...] = option(
        (),
        "other schedulers that ask the controller as an extender, separated by commas; the author of a GPU pod that"
        " names yet another one is warned",
        parse=options.names,
    )
    runtime_class: str = option(names.RUNTIME_CLASS, "runtimeClassName of GPU pods that name none")
    runtime_class_mode: Mode = option(
        Mode.WHERE_NEEDED,
        "if-exists: write runtimeClassName if there is such a RuntimeClass; where-needed: the same, but not while every"
        " node that shares hands GPUs over by CDI; always; never",
        parse=options.one_of(Mode),
    )
    foreign_resources: tuple[str, ...] = option(
        names.PLUGIN_RESOURCES,
        "resources, separated by commas, of other GPU plugins that choose a container's devices (* at the end: any"
        " ending); containers that ask for one are left to that plugin, all others see no GPU; with"
        f" --whole-gpus {names.GPU} is none of them; the chart has the policy {names.ISOLATION_POLICY} name them, too",
        parse=_resources,
    )
    controller_user: str = option(
        "",
        f"the user that may write bindings; by default the ServiceAccount {names.SERVICE_ACCOUNT_CONTROLLER}"
        " of the namespace",
    )
    kubeconfig: str = option("", "kubeconfig file; empty for the cluster that this process runs in")
    graceful_timeout_s: float = option(
        20.0, "seconds that requests may take to end after SIGTERM", parse=options.positive
    )
    worker_tmp_dir: str = option("/dev/shm", "directory in memory for the server's heartbeat file")  # noqa: S108 - same
    log_level: str = options.log_level()

    @property
    def resource_config(self) -> ResourceConfig:
        return ResourceConfig(unit=self.memory_unit, whole_gpus=self.whole_gpus)

    @property
    def controller(self) -> str:
        return self.controller_user or f"system:serviceaccount:{self.namespace}:{names.SERVICE_ACCOUNT_CONTROLLER}"
