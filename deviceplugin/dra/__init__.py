"""ResourceClaims (DRA): a driver that shares some of the node's GPUs, each under the same limits and hand-over."""
