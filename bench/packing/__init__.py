"""Replay of a trace over nodes that are only numbers."""
