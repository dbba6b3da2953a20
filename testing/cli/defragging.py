"""Runs `gpushare defrag` on a cluster in memory."""

import io
from typing import Any

from gpushare_cli import console
from gpushare_cli.console import Streams
from gpushare_cli.evict import defrag as command
from gpushare_cli.reading import Target
from testing.cli.simulating import Result
from testing.clock import ManualClock
from testing.fakes.kube import FakeKube


def defrag(
    api: FakeKube,
    clock: ManualClock | None = None,
    *,
    pod: str | None = None,
    width: int = console.UNLIMITED,
    stdin: str = "",
    **options: Any,
) -> Result:
    """Make room for a pod; by default, and if there is no file, for `large`."""
    out, err = io.StringIO(), io.StringIO()
    streams = Streams(out=out, err=err, width=width)
    name = ("" if options.get("file") else "large") if pod is None else pod
    target = Target.parse(name) if name else None
    asked = command.Options(pod=target, **options)
    text = io.StringIO(stdin)
    code = console.answered(
        streams, lambda: command.run(api, streams, asked, lambda: "default", clock or ManualClock(0), text)
    )
    return Result(code=code, out=out.getvalue(), err=err.getvalue())
