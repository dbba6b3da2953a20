"""Runs NVIDIA's MPS control daemon on a node, and tells the device plugin whether it works."""
