"""`gpushare report`: one file with what others need to understand a problem, and without secrets."""
