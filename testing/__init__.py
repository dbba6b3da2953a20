"""What tests need of gpushare: objects with defaults, and an API server in memory. For this project and for others."""
