"""Share NVIDIA GPUs between Kubernetes pods: the domain that all components share."""
