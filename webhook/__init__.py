"""Admission webhook: completes pods that ask for a share of a GPU and protects their bindings."""
