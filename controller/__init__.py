"""The scheduler extender: filter, prioritize and bind over the cluster's ledger in memory."""
