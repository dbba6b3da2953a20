"""What needs a machine with an NVIDIA GPU."""
