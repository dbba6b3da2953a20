"""Whether a new process can read the driver: exit status 0 if it can, else 1 and the cause."""

import sys

from deviceplugin.nvml import binding

if __name__ == "__main__":
    sys.exit(binding.problem())
