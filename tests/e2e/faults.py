"""Faults of every part of a running cluster, one after another, chosen by a seed."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare import names
from gpushare.kube import api as kube
from localcluster.process import ClusterError
from localcluster.provision import Say
from tests.e2e import disturb
from tests.e2e.system import System

SECRET: Final = f"/api/v1/namespaces/{names.NAMESPACE}/secrets/{names.WEBHOOK_SECRET}"
PAUSE_S: Final = (2.0, 14.0)
"""Between the end of one fault and the next; some come before the last one is over, others find all at rest."""

Fault = Callable[[System, random.Random], None]


def leader(system: System, _chance: random.Random) -> None:
    disturb.kill_leader(system)


def plugin(system: System, chance: random.Random) -> None:
    disturb.kill_plugin(system, chance.choice(system.cluster.nodes).name)


def webhook(system: System, chance: random.Random) -> None:
    _kill_one(system, "webhook", chance)


def scheduler(system: System, chance: random.Random) -> None:
    _kill_one(system, "scheduler", chance)


def kubelet(system: System, chance: random.Random) -> None:
    disturb.only_restart_kubelet(chance.choice(system.cluster.nodes))


def containerd(system: System, chance: random.Random) -> None:
    chance.choice(system.cluster.nodes).restart_containerd()


def api_server(system: System, _chance: random.Random) -> None:
    system.cluster.control.api_server.kill()
    system.cluster.control.start_store()
    system.cluster.control.wait_ready()


def etcd(system: System, _chance: random.Random) -> None:
    system.cluster.control.etcd.kill()
    system.cluster.control.start_store()
    system.cluster.control.wait_ready()


def certificates(system: System, chance: random.Random) -> None:
    system.api.patch(SECRET, {"metadata": {"annotations": {"gpushare.dev/rotate": str(chance.random())}}})


KINDS: Final[Mapping[str, Fault]] = {
    one.__name__: one
    for one in (leader, plugin, webhook, scheduler, kubelet, containerd, api_server, etcd, certificates)
}


@dataclass
class Faults:
    """What breaks until it is stopped."""

    system: System
    seed: int
    say: Say
    done: Counter[str] = field(default_factory=Counter)
    impossible: Counter[str] = field(default_factory=Counter)
    """Kinds whose target was away because of an earlier fault."""

    def run(self, stop: threading.Event) -> None:
        """Break something, wait, and go on, until `stop`; every kind comes before any comes again."""
        # Apart, because how often a target is drawn depends on what is there.
        order, targets = random.Random(self.seed), random.Random(self.seed + 1)
        began = time.monotonic()
        round_: list[str] = []
        while not stop.is_set():
            round_ = round_ or order.sample(sorted(KINDS), len(KINDS))
            kind = round_.pop()
            self.say(f"fault after {time.monotonic() - began:5.0f} s: {kind}")
            try:
                KINDS[kind](self.system, targets)
            except (kube.KubeError, ClusterError, AssertionError) as error:
                self.impossible[kind] += 1
                self.say(f"not possible: {kind}: {str(error)[:200]}")
            else:
                self.done[kind] += 1
            stop.wait(order.uniform(*PAUSE_S))


def _kill_one(system: System, component: str, chance: random.Random) -> None:
    pods = disturb.component_pods(system, component)
    if pods:
        pod = chance.choice(sorted(pods, key=lambda one: str(one["metadata"]["name"])))
        disturb.sigkill(pod)
        disturb.delete_now(system, pod)
