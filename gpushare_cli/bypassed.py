"""Why a bypassed pod gets no GPUs, as `explain` and `simulate` tell it. Pure."""

from typing import Final

from gpushare import names
from gpushare.cluster import bypass
from gpushare.cluster.bypass import AskAuthor, Hopeless, Invalid, Recreate, TooLate
from gpushare.cluster.records import Bypassed

_NOT_MUTATED: Final = "the webhook did not change it, so its containers would not see GPUs that they are given"


def why_not(outcome: Hopeless, pod: Bypassed) -> str:
    """Why this pod gets no GPUs, and what is done about it."""
    again = bypass.again(pod)
    match outcome:
        case Invalid(problem):
            return f"what it asks for cannot be understood: {problem}; fix that and {again}"
        case TooLate():
            return (
                "its containers have started without GPUs from gpushare, and cannot be given any more;"
                f" {again} without spec.nodeName and with the scheduler {names.SCHEDULER}"
            )
        case Recreate():
            return f"{_NOT_MUTATED}; the controller deletes it, so that its owner recreates it"
        case AskAuthor(""):
            return f"{_NOT_MUTATED}; {again}"
        case AskAuthor(advice):
            return f"{_NOT_MUTATED}; {advice} while {names.WEBHOOK} is running"
