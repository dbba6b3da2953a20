"""What docs/reference/doctor.md says."""

from gpushare import names
from gpushare_cli.doctor import command
from gpushare_cli.doctor.command import CHECKS

RIGHTS: tuple[tuple[str, str, str], ...] = (
    ("namespaces", "get, list", "cluster"),
    ("nodes, pods, apps/daemonsets", "list", "cluster"),
    ("node.k8s.io/runtimeclasses", "list", "cluster"),
    ("resource.k8s.io/resourceslices, resource.k8s.io/deviceclasses", "list", "cluster"),
    ("admissionregistration.k8s.io/mutatingwebhookconfigurations", "get", "cluster"),
    ("admissionregistration.k8s.io/validatingwebhookconfigurations", "get", "cluster"),
    ("admissionregistration.k8s.io/validatingadmissionpolicies", "get", "cluster"),
    ("admissionregistration.k8s.io/validatingadmissionpolicybindings", "get", "cluster"),
    ("configmaps, endpoints", "get", "the installation's namespace"),
    ("apps/deployments, apps/daemonsets", "get", "the installation's namespace"),
    ("coordination.k8s.io/leases", "get", "the installation's namespace"),
    ("services/proxy, pods/proxy", "get", "the installation's namespace"),
    ("configmaps", "list", "kube-system"),
    *(("configmaps", "list", namespace) for namespace in names.ADDON_NAMESPACES),
    ("pods", "create", "default"),
)
"""Resources, verbs, where."""
_HEAD = f"""# gpushare doctor

`gpushare doctor` checks an installation, and says for everything that is wrong what to do.
It changes nothing: the one thing that it sends is a dry run of a new pod, which is never stored.
This page is written by `make docs` from the code.

Exit codes: 0 {command.COMMAND.exit_codes}

| severity | meaning |
|---|---|
| error | pods that ask for GPUs will not run, GPUs are handed out twice, or a part that checks need cannot be read |
| warning | it works, but not as it should, or something could not be read |
| ok | intentional setting |

`-o json` prints an object with `version` {command.VERSION}, `server`, `namespace`, `findings` (`check`, \
`severity`, `object`, `problem`, `fix`) and `checks` (`id`, `area`, `meaning`, `result`, and in `skipped` why not \
all could be said).
Fields may be added; a field that changes its meaning changes the version.

A part that cannot be read is one finding under `cluster-read`, with the checks that were not done for it.

## Checks

| check | of | holds if nothing is found |
|---|---|---|
"""
_RIGHTS = """
## Rights
From `configmaps` in kube-system on, it goes on without, with a warning for what was not checked.

| resource | verbs | in |
|---|---|---|
"""


def page() -> str:
    """The page as it should be."""
    checks = "".join(f"| `{check.id}` | {check.area} | {check.meaning} |\n" for check in CHECKS)
    rights = "".join(f"| {resources} | {verbs} | {where} |\n" for resources, verbs, where in RIGHTS)
    return f"{_HEAD}{checks}{_RIGHTS}{rights}"
