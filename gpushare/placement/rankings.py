"""The table of policies: each a ranking, given what is known of the cluster. Adding a policy is adding a row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare.model.request import DEFAULT_POLICY, Policy
from gpushare.placement.dense import Dense
from gpushare.placement.fgd import Fgd
from gpushare.placement.outlook import NOTHING_KNOWN, Outlook
from gpushare.placement.packing import Binpack, Spread
from gpushare.placement.ranking import Ranking
from gpushare.placement.tally import Tally

POLICIES: Final[Mapping[Policy, Callable[[Outlook, Tally | None], Ranking]]] = {
    Policy.BINPACK: lambda *_: Binpack(),
    Policy.SPREAD: lambda *_: Spread(),
    Policy.DENSE: Dense,
    Policy.FGD: lambda outlook, _: Fgd(outlook.typical),
}

LEARNING: Final = frozenset({Policy.DENSE, Policy.FGD})
"""Those that look at the outlook."""


def ranking(policy: Policy, outlook: Outlook = NOTHING_KNOWN) -> Ranking:
    """A policy under one outlook. It remembers what it has counted, so it is made once for many nodes."""
    return POLICIES[policy](outlook, None)


@dataclass(frozen=True, slots=True)
class Rankings:
    """All policies under one outlook, and the one that holds for pods that name none."""

    default: Policy = DEFAULT_POLICY
    outlook: Outlook = NOTHING_KNOWN
    tally: Tally | None = field(default=None, compare=False, repr=False)
    """Of the outlook's kinds, for what it remembers."""
    _made: dict[Policy, Ranking] = field(init=False, default_factory=dict, compare=False, repr=False)

    def of(self, policy: Policy | None) -> Ranking:
        """That of a pod, by what it names."""
        policy = policy or self.default
        found = self._made.get(policy)
        if found is None:
            found = self._made[policy] = POLICIES[policy](self.outlook, self.tally)
        return found
