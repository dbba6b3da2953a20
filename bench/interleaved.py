"""Two servers that take turns, so that what else the machine does touches both alike: medians, CPU, their ratios."""

import http.client
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from bench.questions import Question
from bench.results import Results
from bench.turns import cpu_ms

ROUNDS = 5


class Client:
    """One kept-alive connection, as kube-scheduler has."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.size = self.status = 0
        """Of the last answer."""

    def post(self, path: str, data: bytes) -> bytes:
        self._connection.request("POST", path, data)
        response = self._connection.getresponse()
        answer, self.status = response.read(), response.status
        self.size = len(answer)
        return answer

    def wait_ready(self) -> None:
        """Until the controller answers, and knows what placement learns of a cluster in the seconds after its start."""
        for _ in range(2400):
            if self._get("/readyz")[0] == 200 and b"gpushare_outlook_age_seconds +Inf" not in self._get("/metrics")[1]:
                return
            time.sleep(0.05)
        raise SystemExit("the controller is not ready")

    def _get(self, path: str) -> tuple[int, bytes]:
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        self._connection.close()


@dataclass
class Side:
    """One of the servers."""

    pid: int
    client: Client
    times_ms: list[float] = field(default_factory=list)
    cpu_ms: float = 0.0

    def ask(self, path: str, bodies: Sequence[bytes]) -> None:
        """A part of a round."""
        before = cpu_ms(self.pid)
        for body in bodies:
            started = time.perf_counter()
            self.client.post(path, body)
            self.times_ms.append((time.perf_counter() - started) * 1000)
        self.cpu_ms += cpu_ms(self.pid) - before

    def forget(self) -> None:
        """Begin another question."""
        self.times_ms, self.cpu_ms = [], 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """A question to both."""

    key: str
    nodes: int
    question: str
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    floor_p50_ms: float
    floor_cpu_ms: float
    bytes: int

    @property
    def row(self) -> str:
        """Of a table."""
        times = f"{self.p50_ms:.2f} | {self.p99_ms:.2f} | {self.cpu_ms:.2f}"
        floor = f"{self.floor_p50_ms:.2f} | {self.floor_cpu_ms:.2f}"
        ratio = self.p50_ms / self.floor_p50_ms
        return f"| {self.nodes:,} nodes: {self.question} | {times} | {floor} | {ratio:.1f} | {self.bytes:,} |"


HEAD = (
    "| question | p50 ms | p99 ms | CPU ms | floor p50 | floor CPU | p50 / floor | bytes |\n"
    "|---|---|---|---|---|---|---|---|"
)


def ask_all(questions: Sequence[Question], nodes: int, ours: Side, floor: Side, results: Results) -> None:
    """Ask both everything in turn, and print a line of the table for each."""
    for question in questions:
        found = compare(question, nodes, ours, floor)
        print(found.row, flush=True)
        results.add([asdict(found)])


def compare(question: Question, nodes: int, ours: Side, floor: Side) -> Compared:
    """Ask both in turn; `floor` is asked for as many bytes. The first round does not count."""
    for number in range(ROUNDS + 1):
        if number == 1:
            ours.forget()
            floor.forget()
        each = list(question.bodies())
        ours.ask(question.path, each)
        floor.ask(f"/{ours.client.size}", each)
    count, ordered = len(ours.times_ms), sorted(ours.times_ms)
    return Compared(
        key=question.key,
        nodes=nodes,
        question=question.text,
        p50_ms=statistics.median(ordered),
        p99_ms=ordered[min(count - 1, int(count * 0.99))],
        cpu_ms=ours.cpu_ms / count,
        floor_p50_ms=statistics.median(floor.times_ms),
        floor_cpu_ms=floor.cpu_ms / count,
        bytes=ours.client.size,
    )
