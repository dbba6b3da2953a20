"""Command lines: `gpushare` and `kubectl inspect gpushare`.

Whatever looks at an object that does not have its kind's form raises WireError, and `console.answered` tells it.
"""
