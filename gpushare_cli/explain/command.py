"""`gpushare explain`: reads pods and their cluster, decides, prints."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.units import MemoryUnit
from gpushare_cli import arguments, reading, usage, world
from gpushare_cli.arguments import Command, argument
from gpushare_cli.console import BAD, FAILED, OK, Streams
from gpushare_cli.explain import decide, render
from gpushare_cli.explain.decide import Explanation, State
from gpushare_cli.reading import Objects, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    pod: Target = argument(
        type=Target.parse,
        metavar="POD",
        help="its name, NAMESPACE/NAME, or KIND/NAME for the pods of a workload: deployment/web",
    )
    namespace: str = arguments.namespace()
    installation: str = arguments.installation("gpushare's own settings")
    memory_unit: MemoryUnit | None = arguments.memory_unit(
        "the one of the settings, else the one in which the nodes count"
    )
    output: str = arguments.output()


def run(api: KubeApi, streams: Streams, options: Options, namespace: Callable[[], str]) -> int:
    """Print all about a pod, or about the pods of a workload. The exit code."""
    target = options.pod
    where = target.namespace_or(options.namespace, namespace)
    what = f"{target.kind} {target.name} in namespace {where}"
    try:
        pods = reading.pods_of(api, target.kind, where, target.name)
        cluster = _cluster(api)
        known = reading.settings(api, options.installation, where, options.memory_unit)
        events = reading.events_on if cluster.forbidden else lambda _api, _pod: ()
        state = world.of(cluster, known)
        explained = [decide.explain(pod, state, events(api, pod)) for pod in pods]
        if not cluster.forbidden:
            explained = _with_use(api, explained, options.installation)
    except kube.NotFoundError:
        return streams.error(f"there is no {what}")
    except kube.ForbiddenError as error:
        return streams.error(f"not allowed: {error}")
    if not explained:
        streams.err.write(f"{what} has no pods; see kubectl describe {target.kind} {target.name} -n {where}\n")
        return FAILED
    explained.sort(key=lambda each: (each.good, each.pod.name))
    streams.note(*dict.fromkeys(note for each in explained for note in each.notes))
    alone = target.kind == reading.POD
    streams.answer(
        options.output,
        lambda: render.as_json(explained[0]) if alone else {"pods": [render.as_json(each) for each in explained]},
        lambda: render.grouped(explained, streams.width),
    )
    return OK if all(each.good for each in explained) else BAD


def _cluster(api: KubeApi) -> Objects:
    """What may be read of it: users without rights on nodes still learn what their own pods tell."""
    try:
        return reading.everything(api)
    except kube.ForbiddenError as error:
        return Objects(nodes=(), pods=(), forbidden=str(error))


def _with_use(api: KubeApi, explained: Sequence[Explanation], installation: str) -> list[Explanation]:
    nodes = {each.node for each in explained if each.node is not None and each.state is State.HOLDS}
    uses = usage.read(api, nodes, installation) if nodes else {}
    return [replace(each, use=uses[each.node]) if each.node and each.node in uses else each for each in explained]


COMMAND: Final = Command(
    name="explain",
    what="why a pod waits, or where it is",
    exit_codes="the pod has its GPUs, needs none (or no longer), or fits somewhere; 1 it or the cluster cannot be read;"
    " 2 wrong arguments; 3 it waits and fits nowhere.",
    examples=(
        ("Why a pod waits, or where it is and why", "gpushare explain train"),
        ("All pods of a Deployment in another namespace", "gpushare explain deployment/web -n ml"),
    ),
    add=arguments.of_options(
        Options, "Say why a pod waits, node by node, or where it is and what holds it to its share there."
    ),
    run=lambda call: run(call.api(), call.streams, call.options(Options), call.namespace),
)
