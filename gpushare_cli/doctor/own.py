"""Names of the installation's objects, as the manifests spell them."""

from typing import Final

from gpushare import names

PLUGIN: Final = "gpushare-device-plugin"
WEBHOOK: Final = names.WEBHOOK_SERVICE
CONTROLLER: Final = names.CONTROLLER_SERVICE
SETTINGS: Final = "gpushare-config"
SCHEDULER_SETTINGS: Final = names.SCHEDULER
SCHEDULER_KEY: Final = "scheduler.yaml"
ISOLATION_POLICY: Final = "gpushare-isolation"

LABEL_APP: Final = "app.kubernetes.io/name"
LABEL_SHARES: Final = "gpushare"  # of nodes; its value is "true"
LABEL_NAMESPACE: Final = "kubernetes.io/metadata.name"
LABEL_ISOLATION: Final = f"{names.DOMAIN}/isolation"  # of namespaces; its value is "disabled"

KUBE_SYSTEM: Final = "kube-system"
TRIAL_NAMESPACE: Final = "default"  # where the pod that is never stored would be
WEBHOOK_PORT: Final = 443
