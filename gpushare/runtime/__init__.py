"""What every process needs: settings, logs, time, threads that stop together."""
