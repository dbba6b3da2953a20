"""How long the cluster waits for what, in seconds.

A process that ends is reported at once, and a wait ends with what it waits for, so a limit only has to be longer than
the slowest machine needs: two cores that forty programs share take ten times as long as idle ones.
"""

from typing import Final

COMMAND_S: Final = 180.0
"""One short program, such as `ip` or `kubectl`."""
PROCESS_END_S: Final = 120.0
"""A process that was killed, or a control group whose last process was."""
MOUNTS_S: Final = 120.0
CONTAINERD_S: Final = 180.0
API_SERVER_S: Final = 300.0
KUBELET_S: Final = 180.0
NODES_READY_S: Final = 300.0
IMAGE_S: Final = 600.0
"""One image into one node."""
INSTALLATION_S: Final = 600.0
SAMPLES_S: Final = 600.0
"""All of the demonstration's pods."""
PACKAGES_S: Final = 1800.0
"""The distribution's package manager."""
BUILD_STEP_S: Final = 7200.0
"""One step of building Kubernetes; the compiler says nothing for minutes, so there is no progress to wait for."""
