"""The HTTP client against a real HTTP server on this machine."""
