"""Names that only the doctor needs, as the manifests and Kubernetes spell them."""

from typing import Final

from gpushare import names

SCHEDULER_SETTINGS: Final = names.SCHEDULER
SCHEDULER_KEY: Final = "scheduler.yaml"

LABEL_APP: Final = "app.kubernetes.io/name"
LABEL_NAMESPACE: Final = "kubernetes.io/metadata.name"

KUBE_SYSTEM: Final = "kube-system"
TRIAL_NAMESPACE: Final = "default"  # where the pod that is never stored would be
WEBHOOK_PORT: Final = 443

RUNTIME_CLASSES: Final = (names.RUNTIME_CLASS, "nvidia-cdi", "nvidia-legacy", "nvidia-experimental")

APPLY: Final = "apply the overlay for your server's version again: kubectl apply -k manifests/overlays/OVERLAY"
