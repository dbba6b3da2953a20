"""Where a pod goes on a node, and why not. Pure."""
