"""`python -m controller`: the same as the installed command."""

import sys

from gpushare import launch

if __name__ == "__main__":
    sys.exit(launch.controller())
