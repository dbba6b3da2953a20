"""What kube-scheduler asks, and the answers."""
