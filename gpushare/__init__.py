"""Share NVIDIA GPUs between Kubernetes pods: the domain that all components share."""

__version__ = "0.1.0"
