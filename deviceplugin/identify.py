"""Device IDs -> the container that holds them, from the kubelet's own two records. Pure; never by size or age.

PodResources knows names but lists no init containers; the checkpoint file knows UIDs and all containers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from deviceplugin.resources import Resource
from gpushare.errors import GpuShareError, WireError
from gpushare.identity import ContainerName, PodUid

CHECKPOINT: Final = "kubelet_internal_checkpoint"  # it lies beside the sockets of device plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedContainer:
    resource: str
    namespace: str
    name: str
    container: ContainerName
    ids: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    uid: PodUid
    container: ContainerName
    ids: frozenset[str]
    response: str = ""  # what Allocate answered, as the kubelet keeps it


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds the IDs. Without a UID there is a name, without a name a UID."""

    uid: PodUid | None
    namespace: str = ""
    name: str = ""
    containers: tuple[ContainerName, ...]  # each may be the one that starts: an init container's IDs are passed on
    responses: Mapping[ContainerName, str] | None = None  # what Allocate answered; None: not in the checkpoint


class ListerError(GpuShareError):
    """The kubelet does not say who holds which devices."""


Lister = Callable[[Resource, float], Sequence[ListedContainer]]
"""All containers with devices of a resource, as the kubelet knows them now; ListerError after so many seconds."""


def owner(ids: frozenset[str], listed: Iterable[ListedContainer], recorded: Iterable[Recorded]) -> Owner | str:
    """The container that holds exactly the IDs that PreStartContainer gets, or why it is not known.

    PodResources and the checkpoint are of the IDs' resource only; a checkpoint that could not be read is empty.
    """
    if not ids:
        return "the kubelet named no device IDs"
    listing = list(listed)
    records = [entry for entry in recorded if entry.ids == ids]
    exact = [entry for entry in listing if entry.ids == ids]
    # An init container is not listed itself, but a container that took over some of its IDs gives the pod's name.
    pods = {(entry.namespace, entry.name) for entry in exact or [e for e in listing if e.ids & ids]}
    uids = {entry.uid for entry in records}
    if len(uids) > 1 or len({(entry.namespace, entry.name) for entry in exact}) > 1:
        return f"several pods hold the devices {_some(ids)}"
    if not records and not exact:
        return f"neither PodResources nor {CHECKPOINT} knows a container with exactly the devices {_some(ids)}"
    containers = tuple(dict.fromkeys(entry.container for entry in records or exact))
    if records and not {entry.container for entry in exact} <= set(containers):
        return (
            f"PodResources gives the devices {_some(ids)} to container {exact[0].container}, {CHECKPOINT} to"
            f" {', '.join(containers)}"
        )
    namespace, name = pods.pop() if len(pods) == 1 else ("", "")
    return Owner(
        uid=uids.pop() if uids else None,
        namespace=namespace,
        name=name,
        containers=containers,
        responses={entry.container: entry.response for entry in records} if records else None,
    )


def read_checkpoint(text: bytes, resource: Resource) -> Sequence[Recorded]:
    """The entries of one resource in the kubelet's checkpoint file, of any kubelet version. May raise WireError."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise WireError(f"{CHECKPOINT}: not JSON ({error})") from error
    try:
        return [
            Recorded(
                uid=PodUid(_text(entry["PodUID"])),
                container=ContainerName(_text(entry["ContainerName"])),
                ids=_ids(entry["DeviceIDs"]),
                response=_text(entry.get("AllocResp") or ""),
            )
            for entry in document["Data"]["PodDeviceEntries"] or ()
            if entry["ResourceName"] == resource.name
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise WireError(
            f"{CHECKPOINT}: expected Data.PodDeviceEntries with PodUID, ContainerName, ResourceName and DeviceIDs"
            f" ({type(error).__name__}: {error})"
        ) from error


def _ids(value: Any) -> frozenset[str]:
    """A list up to Kubernetes 1.20, lists by NUMA node since."""
    if isinstance(value, list):
        return frozenset(map(_text, value))
    return frozenset(_text(device) for devices in value.values() for device in devices)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _some(ids: frozenset[str]) -> str:
    first = sorted(ids)[:3]
    return ", ".join(first) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
