"""A stub of NVIDIA's management library in C, driven by a file that tests write."""
