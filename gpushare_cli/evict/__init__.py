"""`gpushare drain`, `cordon` and `uncordon`: keep new pods away from one GPU, and have those that are there leave."""
