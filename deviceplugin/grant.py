"""What Allocate answers: the same for every container, because the kubelet does not say who is asking. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gpushare import names

ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType({names.ENV_VISIBLE_DEVICES: names.VISIBLE_DEVICES_NONE})
"""Weaker than the pod's own variables, stronger than the image's: a pod that the webhook did not change sees no GPU,
also when its image says `all`. In every other pod the webhook's variable, which names the granted GPUs, wins."""
