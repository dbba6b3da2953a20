"""Formats on the wire, each with its reader and writer. Pure."""
