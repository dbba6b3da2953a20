"""The API server, behind a protocol over plain dictionaries."""
