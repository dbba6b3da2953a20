"""Tests and their test bed."""
