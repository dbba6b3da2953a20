"""What containers use of their GPUs, seen from outside, and the watchdog over it."""
