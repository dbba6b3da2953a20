"""The table of docs/contributing/escapes.md: what tenants try in the end-to-end tests, and how each ends."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpushare import names
from gpushare.model.gpu import HandOver
from testing.tenant import attempts, changes, escape_table, escapes
from testing.tenant.attempts import Attempt, Ends
from testing.tenant.changes import BINDINGS, Change, Reach

WAYS: Final = (HandOver.CDI, HandOver.ENVVAR, HandOver.VOLUME_MOUNTS)
OUTCOMES: Final = {
    Ends.REFUSED: "refused",
    Ends.WAITS: "does not start",
    Ends.NOTHING: "no GPU",
    Ends.GRANTED: "its own GPUs",
    Ends.ESCAPES: "**escapes**",
}
HEAD: Final = f"""# Isolation tests

What the tests try on a real API server or cluster, as a user with the role `edit`; they fail when one ends otherwise.
The GPUs are simulated, their device nodes and the device cgroup are real. For pods under the RuntimeClass `nvidia` a
stand-in chooses devices as NVIDIA's runtime does; it was compared with NVIDIA's own program.
Attempts of which the webhook makes the same pod are one pod on a node.
This page is written by `make docs` from the code; do not edit it.

| It ends | It means |
|---|---|
| {OUTCOMES[Ends.REFUSED]} | the API server refuses the request |
| {OUTCOMES[Ends.WAITS]} | none of the pod's containers starts |
| {OUTCOMES[Ends.NOTHING]} | it runs; no container has a GPU's device node, or may open one that it makes |
| {OUTCOMES[Ends.GRANTED]} | the same, but for the GPUs that the container was granted |
| {OUTCOMES[Ends.ESCAPES]} | it gets further; the last column says what stops it |
| unchanged | what a running pod was granted, and what its containers see, stay |

Where nodes differ, the way to hand over GPUs is named; [what the node decides](../security.md#what-the-node-decides)
has their settings. Where only Pod Security stops an attempt, the level `baseline` has to be enforced in the namespaces
of tenants; from Kubernetes 1.23 on, the tests try that too.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One line."""

    what: str
    outcomes: tuple[str, ...]
    """For each of `WAYS`."""
    by: str
    times: int = 1
    """How many attempts it stands for."""

    def __str__(self) -> str:
        """What is tried."""
        return f"{self.what} ({self.times} ways)" if self.times > 1 else self.what


def page() -> str:
    """All of it."""
    sections = "".join(f"\n## {title}\n\n{_table(rows)}" for title, rows in SECTIONS.items())
    return HEAD + sections


def rows() -> Sequence[Row]:
    """Of all sections."""
    return [row for section in SECTIONS.values() for row in section]


def _table(listed: Sequence[Row]) -> str:
    """Attempts that end alike, by the same, are one line."""
    alike: dict[tuple[str, str], list[str]] = {}
    for row in listed:
        alike.setdefault((_ends(row.outcomes), row.by), []).append(str(row))
    lines = (f"| {'<br>'.join(_together(what))} | {ends} | {by} |\n" for (ends, by), what in alike.items())
    return f"| What is tried | It ends | What stops it |\n|---|---|---|\n{''.join(lines)}"


def _together(attempts_made: Sequence[str]) -> Iterator[str]:
    """Those that differ only in one piece of code become one, with all these pieces."""
    by_frame: dict[tuple[str, str], list[str]] = {}
    for what in attempts_made:
        before, *others = what.split("`", 1)
        code, *after = others[0].split("`", 1) if others else ("", "")
        if "on `" in what and what.endswith("`"):
            before, code, after = f"{what[: what.index('on `')]}on ", what[what.index("on `") + 4 : -1], [""]
        by_frame.setdefault((before, after[0]), []).append(f"`{code}`" if others else "")
    yield from (f"{before}{', '.join(codes)}{after}" for (before, after), codes in by_frame.items())


def _ends(outcomes: Sequence[str]) -> str:
    by_outcome: dict[str, list[str]] = {}
    for way, outcome in zip(WAYS, outcomes, strict=True):
        by_outcome.setdefault(outcome, []).append(f"`{way.value}`")
    if len(by_outcome) == 1:
        return outcomes[0]
    return "; ".join(f"{', '.join(ways)}: {outcome}" for outcome, ways in by_outcome.items())


def _merged(listed: Iterator[Row]) -> Sequence[Row]:
    found: dict[Row, int] = {}
    for row in listed:
        found[row] = found.get(row, 0) + 1
    return [replace(row, times=times) for row, times in found.items()]


def _of_pods(listed: Iterator[Attempt]) -> Sequence[Row]:
    return _merged(map(_of_pod, listed))


def _of_pod(attempt: Attempt) -> Row:
    by = attempt.by
    if attempt.old_ends is not None and attempt.old_ends is not attempt.ends:
        by += f" (before 1.30: {OUTCOMES[attempt.old_ends]})"
    return Row(attempt.what, tuple(OUTCOMES[attempt.on.get(way, attempt.ends)] for way in WAYS), by)


CHANGED: Final = {
    "env-victim": "another `env`",
    "env-idle": "another `env`",
    "more-memory": "a larger limit",
    "more-memory-by-resize": "a larger limit",
}


def _same(what: str, outcome: str, by: str) -> Row:
    return Row(what, (outcome,) * len(WAYS), by)


def _change(change: Change) -> Row:
    metadata = change.body.get("metadata", {})
    written = {**metadata.get("annotations", {}), **metadata.get("labels", {})}
    done = [f"`{key}` {'removed from' if value is None else 'written on'}" for key, value in written.items()]
    what = " and ".join(done) or f"{CHANGED[change.name]} of"
    what += f" a pod {'with' if change.holds else 'without'} a share"
    what += f", by `pods/{change.subresource}`" if change.subresource else ""
    outcome = "refused" if change.by else "unchanged"
    older = "; before 1.30 written, without effect" if change.since_130 else ""
    return _same(what, outcome, ("the webhook or the API server" if change.by else "the API server") + older)


def _binding(name: str) -> Row:
    keys = ", ".join(f"`{key}`" for key in BINDINGS[name])
    by = f"the webhook; `{names.CDI_POLICY}`" if name.startswith("cdi") else "the webhook"
    return _same(f"a Binding with {keys}", "refused", f"{by}; before 1.30 only the right to bind, which tenants lack")


def _reach(reach: Reach) -> Row:
    what = f"{reach.verb} `{reach.path.replace('tenant-a', 'NAMESPACE').replace('node-1', 'NODE')}`"
    return _same(what, "refused", "the role `edit` has no such right")


def _workload(kind: str) -> Row:
    return _same(f"a `{kind}` whose template says and forges `all`", OUTCOMES[Ends.NOTHING], attempts.HOOK)


SECTIONS: Final = {
    "New pods": _of_pods(attempts.api_attempts("NODE")),
    "New pods, on the node": _of_pods(escapes.node_attempts()),
    "Workloads": [_workload(kind) for kind in sorted(escape_table.WORKLOADS)],
    "Pods that run": _merged(map(_change, changes.changes())),
    "Bindings": _merged(map(_binding, BINDINGS)),
    "The rest of the cluster": _merged(map(_reach, changes.reaches("tenant-a", "node-1"))),
}
