"""A node on which anything happens to processes and containers, and what is really so."""

import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

from deviceplugin import pods as pods_cache
from deviceplugin.cgroups import TICKS, CgroupOwner, Process, Procfs
from deviceplugin.inventory import InventoryFeed
from deviceplugin.pods import PodCache
from deviceplugin.source import GpuProcess, Lists
from gpushare import units
from gpushare.identity import GpuUuid, NodeName, PodUid
from gpushare.model.gpu import NodeInventory
from testing.builders import Json, make_gpu, make_grant, make_mig
from testing.clock import ManualClock
from testing.deviceplugin.usage import container_id, running_pod, uid
from testing.fakes.kube import FakeKube

INVENTORY = NodeInventory(node=NodeName("node-a"), gpus=(make_gpu(0, 16), make_mig(1, 0, 16)), unit=units.GIB)
GPUS = tuple(gpu.uuid for gpu in INVENTORY.gpus)  # one whole GPU, and an instance of another one
PIDS = range(1, 9)  # few, so that they are used again soon
GIB, MIB = 1024, 1024 * 1024


@dataclass(eq=False)
class Real:
    """One process. Compared as itself: what has its PID later is another."""

    pid: int
    started: int
    owner: CgroupOwner | None
    memory: dict[GpuUuid, int]  # MiB


@dataclass(eq=False)
class RealContainer:
    """One life of one container."""

    pod: PodUid
    name: str
    number: int

    @property
    def owner(self) -> CgroupOwner:
        return CgroupOwner(self.pod, container_id(self.number))


@dataclass(frozen=True)
class Moment:
    """What was so while the lists of one sample were read."""

    at: float
    answered: frozenset[GpuUuid]
    used: Mapping[tuple[CgroupOwner, GpuUuid], int]  # MiB, really
    names: dict[CgroupOwner, str]
    """Of all containers that have run, also those that the kubelet has yet to tell."""


@dataclass(kw_only=True)
class World(Procfs):
    """Also the driver, /proc, and the watch of pods. Rates of 0 make it one in which nothing is hidden."""

    random: Random
    clean: bool
    asked: tuple[str, ...]  # what authors of pods may ask of the watchdog
    handles: bool
    leaves_memory: bool = False
    """Whether the memory of processes that end can stay with their children, and their PIDs in the lists."""
    clock: ManualClock = field(default_factory=ManualClock)
    api: FakeKube = field(default_factory=FakeKube)
    feed: InventoryFeed = field(default_factory=InventoryFeed)
    processes: dict[int, Real] = field(default_factory=dict)
    containers: dict[str, RealContainer] = field(default_factory=dict)  # by pod and name; those that run
    grants: dict[tuple[PodUid, str, GpuUuid], int] = field(default_factory=dict)
    policies: dict[PodUid, str] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    listed: dict[GpuUuid, list[Real]] = field(default_factory=dict)
    left: list[Real] = field(default_factory=list)  # those that have ended, and are listed
    ended: list[Real] = field(default_factory=list)  # those that a signal has reached
    names: dict[CgroupOwner, str] = field(default_factory=dict)
    made: int = 0

    def __post_init__(self) -> None:
        self.cache = PodCache(self.clock)
        self.feed.post(INVENTORY)
        for number in range(3):
            self.add_pod(number)

    # What happens.

    def add_pod(self, number: int) -> None:
        pod = uid(number)
        names = ("a", "b", "side") if self.random.random() < 0.5 else ("a",)
        for name in names[:2]:
            mib = self.random.choice((1, 2, 4)) * GIB
            for gpu in GPUS if self.random.random() < 0.5 else GPUS[:1]:
                self.grants[pod, name, gpu] = mib
        self.policies[pod] = self.random.choice(("", "", *self.asked))
        for name in names:
            self.start(pod, name)
        self.api.seed(f"/api/v1/namespaces/default/pods/pod-{number}", self.pod(number))
        self.tell(number)

    def start(self, pod: PodUid, name: str) -> None:
        self.made += 1
        container = RealContainer(pod, name, self.made)
        self.containers[pod + name] = container
        self.names[container.owner] = name

    def pod(self, number: int) -> Json:
        pod = uid(number)
        ids = {each.name: each.number for each in self.containers.values() if each.pod == pod}
        held = {name: [gpu for gpu in GPUS if (pod, name, gpu) in self.grants] for name in ("a", "b")}
        grants = [
            make_grant(*gpus, gib=self.grants[pod, name, gpus[0]] // GIB, container=name)
            for name, gpus in held.items()
            if gpus
        ]
        return running_pod(number, *grants, ids=ids, policy=self.policies[pod])

    def tell(self, number: int) -> None:
        """The watch shows the pod as it is now."""
        if any(each.pod == uid(number) for each in self.containers.values()):
            self.cache.upsert(pods_cache.reduce(self.pod(number)))

    def step(self) -> None:
        """Time goes by, and a few things happen."""
        self.clock.at += 5.0 if self.clean or self.random.random() < 0.9 else self.random.choice((7, 15, 21, 60))
        for _ in range(self.random.randrange(4)):
            self.happen()
        if self.clean:
            for number in range(3):
                self.tell(number)
        self.clock.at += 1.0

    def happen(self) -> None:
        roll = self.random.random()
        if roll < 0.45:
            self.spawn(self.pid())
        elif roll < 0.6 and self.processes:
            process = self.random.choice(list(self.processes.values()))
            process.memory[self.random.choice(GPUS)] = self.random.choice((0, 100, 900, 1500, 3000, 5000))
        elif roll < 0.7 and self.processes:
            self.end(self.random.choice(list(self.processes)))
        elif roll < 0.85 and self.containers:
            self.restart(self.random.choice(list(self.containers.values())))
        elif roll < 0.9 and not self.clean:
            self.lose_pod(self.random.randrange(3))
        else:
            self.tell(self.random.randrange(3))

    def pid(self) -> int:
        """Of a new process: soon used again, where not everything is to be found."""
        self.made += 1
        return 100 + self.made if self.clean else self.random.choice(PIDS)

    def end(self, pid: int) -> None:
        ended = self.processes.pop(pid)
        was_listed = all(ended in self.listed.get(gpu, ()) for gpu in ended.memory)
        if self.leaves_memory and was_listed and self.random.random() < 0.5:
            self.left.append(ended)
        elif self.left and self.random.random() < 0.5:
            self.left.pop()

    def spawn(self, pid: int) -> None:
        """A new process; what has the PID ends."""
        owners: list[CgroupOwner | None] = [each.owner for each in self.containers.values()]
        owners += [None, CgroupOwner(uid(77), container_id(77)), CgroupOwner(uid(0), "")]
        memory = {gpu: self.random.choice((0, 500, 1500, 3000, 5000)) for gpu in GPUS}
        self.processes[pid] = Real(pid, int(self.clock.at * TICKS), self.random.choice(owners), memory)

    def restart(self, container: RealContainer) -> None:
        ended = [each for each in self.processes.values() if each.owner == container.owner]
        self.processes = {pid: each for pid, each in self.processes.items() if each not in ended}
        self.start(container.pod, container.name)
        if self.random.random() < 0.8:  # its programs do the same again, and the kubelet tells of it soon
            for each in ended:
                pid = self.pid() if self.clean else each.pid
                self.spawn(pid)
                again = self.processes[pid]
                again.owner, again.memory = self.containers[container.pod + container.name].owner, dict(each.memory)
            self.tell(next(number for number in range(3) if uid(number) == container.pod))

    def lose_pod(self, number: int) -> None:
        pod = uid(number)
        self.processes = {
            pid: each for pid, each in self.processes.items() if each.owner is None or each.owner.pod != pod
        }
        self.containers = {key: each for key, each in self.containers.items() if each.pod != pod}
        if self.random.random() < 0.7:
            self.cache.remove({"metadata": {"namespace": "default", "name": f"pod-{number}", "uid": pod}})

    def hides(self, chance: float) -> bool:
        return not self.clean and self.random.random() < chance

    def meanwhile(self) -> None:
        """Something happens between two readings."""
        if self.hides(0.3):
            self.clock.at += 0.02
            self.random.choice((self.happen, lambda: self.spawn(self.random.choice(PIDS))))()

    # The driver: see ProcessLists.

    def read_lists(self, gpus: Collection[GpuUuid]) -> Lists:
        lists: dict[GpuUuid, tuple[GpuProcess, ...] | None] = {}
        self.listed = {}
        for gpu in gpus:
            there = [each for each in (*self.processes.values(), *self.left) if gpu in each.memory]
            self.listed[gpu] = [] if self.hides(0.1) else there
            lists[gpu] = (
                tuple(GpuProcess(each.pid, None if self.hides(0.05) else each.memory[gpu] * MIB) for each in there)
                if self.listed[gpu] is there
                else None
            )
        used: Counter[tuple[CgroupOwner, GpuUuid]] = Counter()
        for process in self.processes.values():
            for gpu, mib in process.memory.items():
                if process.owner:
                    used[process.owner, gpu] += mib
        answered = frozenset(gpu for gpu, listed in lists.items() if listed is not None)
        self.moments.append(Moment(self.clock.at, answered, used, dict(self.names)))
        self.meanwhile()
        return lists

    # The machine: see Procfs.

    def read(self, pid: int) -> Process | None:
        self.meanwhile()
        real = self.processes.get(pid)
        return Process(pid, real.started, real.owner) if real else None

    @contextmanager
    def hold(self, pid: int) -> Iterator[Callable[[signal.Signals], None]]:
        self.meanwhile()
        if pid not in self.processes:
            raise ProcessLookupError
        yield partial(self.kill, pid, self.processes[pid] if self.handles else None)

    def kill(self, pid: int, held: Real | None, number: signal.Signals) -> None:
        if held is not None:  # without handles nothing can be done about what happens here
            self.meanwhile()
        target = held or self.processes.get(pid)
        if target is None or self.processes.get(target.pid) is not target:
            raise ProcessLookupError
        self.ended.append(target)
        if number is signal.SIGKILL or self.random.random() < 0.5:
            del self.processes[pid]
