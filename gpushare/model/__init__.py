"""Frozen values of the domain. Pure: no I/O, no clock, no logging."""
