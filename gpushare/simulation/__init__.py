"""Pods that come to a cluster one after another, and the nodes that kube-scheduler and the extender choose. Pure."""
