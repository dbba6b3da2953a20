"""Command lines: `gpushare` and `kubectl inspect gpushare`."""
