"""The leader's chores beside answering kube-scheduler."""
