"""Pods, processes and samples for tests of usage."""

from collections.abc import Iterable, Mapping
from typing import Any

from deviceplugin import pods
from deviceplugin.cgroups import CgroupOwner, Process
from deviceplugin.dra import claims
from deviceplugin.inventory import InventoryFeed
from deviceplugin.pods import PodCache
from deviceplugin.source import GpuProcess
from deviceplugin.usage import join
from deviceplugin.usage.join import Pods, Sample
from deviceplugin.usage.loop import UsageLoop
from gpushare.identity import GpuUuid, PodUid
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import Grant
from gpushare.runtime.clock import Clock
from gpushare.units import ResourceConfig
from gpushare.wire.claims import Claim
from testing.builders import Json
from testing.deviceplugin.build import bound_pod

MIB = 1024 * 1024


def holding(objects: Iterable[Json], inventory: NodeInventory, *prepared: Claim) -> Pods:
    """What these pods hold, as the plugin keeps them."""
    known = [*map(pods.reduce, objects)]
    by_claims = claims.held_by_pods(known, prepared, inventory)
    return join.holding((*pods.held(known, inventory, ResourceConfig(whole_gpus=True)), *by_claims), inventory)


def usage_loop(feed: InventoryFeed, cache: PodCache, clock: Clock, **fields: Any) -> UsageLoop:
    """Of the pods in a cache. Args: fields: lists, table, and others beside sensible defaults."""

    def held(inventory: NodeInventory) -> Pods:
        return join.holding(pods.held(cache.all(), inventory, ResourceConfig(whole_gpus=True)), inventory)

    given: dict[str, Any] = {"watchdog": None, "interval_s": 5.0, "stale_s": 1e9} | fields
    return UsageLoop(feed=feed, holding=held, clock=clock, **given)


def uid(number: int) -> PodUid:
    return PodUid(f"00000000-0000-4000-8000-{number:012x}")


def container_id(number: int) -> str:
    return f"{number:064x}"


def running_pod(number: int, *grants: Grant, ids: Mapping[str, int] | None = None, policy: str = "") -> Json:
    """A pod whose containers run. Args: ids: number of each container's ID, by name."""
    annotations = {"gpushare.dev/watchdog": policy} if policy else None
    pod = bound_pod(*grants, name=f"pod-{number}", annotations=annotations)
    pod["metadata"]["uid"] = uid(number)
    pod["status"]["containerStatuses"] = [
        {"name": name, "containerID": f"containerd://{container_id(each)}", "state": {"running": {}}}
        for name, each in (ids or {}).items()
    ]
    return pod


def claiming(pod: Json, claims: Mapping[str, str], **uses: str) -> Json:
    """The pod with claims, by its names for them. Args: uses: by each container, as in `gpu gpu/request`."""
    spec, status = pod["spec"], pod["status"]
    spec["resourceClaims"] = [{"name": name, "resourceClaimTemplateName": "t"} for name in claims]
    status["resourceClaimStatuses"] = [{"name": name, "resourceClaimName": claim} for name, claim in claims.items()]
    for container in [each for each in spec["containers"] if each["name"] in uses]:
        named = [use.partition("/")[::2] for use in uses[container["name"]].split()]
        told = [{"name": name, **({"request": request} if request else {})} for name, request in named]
        container["resources"] = {**container.get("resources", {}), "claims": told}
    return pod


def process(pid: int, pod: int | None, container: int = 0, *, started: int = 1) -> Process:
    """Args: container: 0 for one that is in none."""
    owner = None if pod is None else CgroupOwner(uid(pod), container_id(container) if container else "")
    return Process(pid, started, owner)


def sample(lists: Mapping[str, Mapping[int, int | None] | None], *processes: Process, at: float = 1000.0) -> Sample:
    """Args: lists: MiB by PID, of each GPU."""
    read = {
        GpuUuid(gpu): None
        if listed is None
        else tuple(GpuProcess(pid, None if mib is None else mib * MIB) for pid, mib in listed.items())
        for gpu, listed in lists.items()
    }
    return Sample(at=at, lists=read, processes={each.pid: each for each in processes})
