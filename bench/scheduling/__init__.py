"""kube-scheduler, as far as it decides where a pod goes: its own arithmetic, and extenders over HTTP."""
