"""A trace: its nodes, its pods, and the orders in which both come."""

import ast
import csv
import gzip
import io
import random
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import Choice

FULL = 1000  # MiB that stand for a GPU: the trace counts thousandths
LOAD = 130  # per cent of the GPUs for which pods ask in all


@dataclass(frozen=True)
class Workload:
    trace: str
    directory: Path
    nodes: tuple[NodeCapacity, ...]
    pods: tuple[Ask, ...]
    seconds: tuple[float, ...]
    """How long each of them ran; 0 where the list does not tell."""

    @classmethod
    def read(cls, directory: Path, trace: str) -> "Workload":
        nodes = tuple(map(_node, _rows(directory, "openb_node_list_gpu_node.csv")))
        rows = _rows(directory, f"openb_pod_list_{trace}.csv")
        return cls(trace, directory, nodes, tuple(map(_pod, rows)), tuple(map(_seconds, rows)))

    @property
    def capacity(self) -> int:
        return sum(gpu.total_mib for node in self.nodes for gpu in node.gpus)

    def orders(self, seed: int, *, recorded: bool) -> tuple[list[int], list[int]]:
        """Pods by their place in the list as they come, and nodes in the order that decides exact ties."""
        path = self.directory / f"orders_{self.trace}.npz"
        if recorded and path.exists():
            with zipfile.ZipFile(path) as archive:
                if f"pods{seed}.npy" in archive.namelist():
                    ranks = _numbers(archive.read(f"rank{seed}.npy"))
                    nodes = sorted(range(len(ranks)), key=ranks.__getitem__)
                    return _numbers(archive.read(f"pods{seed}.npy")), nodes
        rng = random.Random(seed)
        return self._drawn(rng), rng.sample(range(len(self.nodes)), len(self.nodes))

    def _drawn(self, rng: random.Random) -> list[int]:
        most, size = LOAD * self.capacity // 100, len(self.pods)
        order = rng.sample(range(size), size)
        asked = sum(map(asks_for, self.pods))
        while asked > most:
            asked -= asks_for(self.pods[order.pop(rng.randrange(len(order)))])
        while asked + asks_for(self.pods[drawn := rng.randrange(size)]) <= most:
            asked += asks_for(self.pods[drawn])
            order.append(drawn)
        return order


def asks_for(pod: Ask) -> int:
    return pod.gpus * (FULL if pod.whole else pod.memory_mib)


def _rows(directory: Path, name: str) -> list[dict[str, str]]:
    packed = directory / f"{name}.gz"
    try:
        raw = gzip.decompress(packed.read_bytes()) if packed.exists() else (directory / name).read_bytes()
    except FileNotFoundError:
        raise SystemExit(f"error: {directory / name}: no such file, nor {packed.name}") from None
    return list(csv.DictReader(io.StringIO(raw.decode())))


def _node(row: dict[str, str]) -> NodeCapacity:
    gpus = (FreeGpu(FULL, FULL),) * int(row["gpu"])
    return NodeCapacity(row["model"], gpus, FreeHost(int(row["cpu_milli"]), int(row["memory_mib"])))


def _pod(row: dict[str, str]) -> Ask:
    gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"])
    whole = gpus > 0 and (gpus > 1 or milli >= FULL)
    wanted = tuple(sorted({model for model in (row.get("gpu_spec") or "").split("|") if model}))
    return Ask(
        gpus=gpus,
        memory_mib=milli if gpus and not whole else 0,
        whole=whole,
        cpu_milli=int(row["cpu_milli"]),
        host_mib=int(row["memory_mib"]),
        models=Choice(wanted=wanted if gpus else ()),
    )


def _seconds(row: dict[str, str]) -> float:
    return max(float(row.get("deletion_time") or 0) - float(row.get("creation_time") or 0), 0.0)


def _numbers(raw: bytes) -> list[int]:
    """A one-dimensional array of integers in numpy's file format, version 1."""
    length = struct.unpack_from("<H", raw, 8)[0]
    header = ast.literal_eval(raw[10 : 10 + length].decode())
    code = {"<i2": "h", "<i4": "i", "<i8": "q", "<u2": "H"}[header["descr"]]
    return list(struct.unpack_from(f"<{header['shape'][0]}{code}", raw, 10 + length))
