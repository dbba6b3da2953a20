"""`gpushare defrag`: the few evictions that make room for a pod."""
