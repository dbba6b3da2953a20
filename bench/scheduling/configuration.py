"""What this project's printed KubeSchedulerConfiguration tells kube-scheduler, as far as it decides where pods go."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import yaml

from gpushare_cli import scheduler_config
from gpushare_cli.scheduler_config import Options, ServerVersion

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extender:
    """One entry of the configuration."""

    path: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    resources: frozenset[str] = frozenset()
    """It is asked about pods that request one of them; about all pods if there are none."""

    def is_asked(self, pod: Json) -> bool:
        containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
        amounts = [
            container.get("resources", {}).get(key, {}) for container in containers for key in ("limits", "requests")
        ]
        return not self.resources or any(not self.resources.isdisjoint(each) for each in amounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Of one scheduler."""

    extenders: tuple[Extender, ...] = ()
    packs: bool = False
    """NodeResourcesFit scores by MostAllocated instead of LeastAllocated."""

    def without_ranking(self) -> "Configuration":
        """Nodes are filtered, and kube-scheduler's own plugins rank them."""
        return replace(self, extenders=tuple(replace(one, prioritize_verb="") for one in self.extenders))


def printed(server: str, *, rank_others: bool = False, most_allocated: bool = False) -> Configuration:
    """What `gpushare scheduler-config` prints for a version of Kubernetes, with --rank-others or --most-allocated."""
    options = Options(
        server=ServerVersion.parse(server),
        whole_gpus=True,
        others_weight=scheduler_config.OTHERS_WEIGHT if rank_others else None,
        most_allocated=most_allocated,
    )
    return read(yaml.safe_load(scheduler_config.configuration(options)))


def read(value: Json) -> Configuration:
    """A KubeSchedulerConfiguration with one profile."""
    [profile] = value["profiles"]
    arguments = {one["name"]: one.get("args", {}) for one in profile.get("pluginConfig", ())}
    strategy = arguments.get("NodeResourcesFit", {}).get("scoringStrategy", {}).get("type", "LeastAllocated")
    enabled = {one["name"] for one in profile.get("plugins", {}).get("score", {}).get("enabled", ())}
    packs = strategy == "MostAllocated" or "NodeResourcesMostAllocated" in enabled
    return Configuration(extenders=tuple(map(_extender, value["extenders"])), packs=packs)


def _extender(entry: Json) -> Extender:
    return Extender(
        path=urlsplit(entry["urlPrefix"]).path,
        filter_verb=entry.get("filterVerb", ""),
        prioritize_verb=entry.get("prioritizeVerb", ""),
        bind_verb=entry.get("bindVerb", ""),
        weight=entry.get("weight", 1),
        resources=frozenset(one["name"] for one in entry.get("managedResources", ())),
    )
