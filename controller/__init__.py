"""The scheduler extender: filter, prioritize and bind over the cluster's books in memory."""
