"""Binds many pods through a binder and says how long it took."""

import concurrent.futures
import statistics
import time
from collections.abc import Sequence

from controller.extender.bind import Binder
from controller.extender.messages import BindArgs


def timed(binder: Binder, args: Sequence[BindArgs], streams: int) -> str:
    """One line of the table: rate, median and 99th percentile. The first bind that fails ends the measurement."""

    def bind(arguments: BindArgs) -> float:
        started = time.perf_counter()
        answer = binder.bind(arguments)
        if answer.error:
            raise SystemExit(answer.error)
        return (time.perf_counter() - started) * 1000

    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        times = sorted(pool.map(bind, args))
    rate = len(times) / (time.perf_counter() - started)
    p99 = times[int(len(times) * 0.99)]
    return f"{streams} streams: {rate:6.0f} binds a second, p50 {statistics.median(times):.2f} ms, p99 {p99:.2f} ms"
