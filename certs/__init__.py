"""The webhook's TLS: own CA, leaf, rotation. See README.md."""
