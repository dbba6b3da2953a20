"""`gpushare dashboard` and `gpushare top`: who holds how much of which GPU, and what waits, as it changes."""
