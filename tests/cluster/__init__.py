"""A real Kubernetes cluster on one machine, for the end-to-end tests and the demo.

``from tests.cluster.cluster import Cluster`` is the way in; ``python -m tests.cluster up`` starts one by hand.
This file imports nothing, so that ``python -m tests.cluster.provision`` runs before there is a virtual environment.
"""
