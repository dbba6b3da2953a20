"""A real Kubernetes cluster on one machine, for the end-to-end tests and the demonstration.

``from localcluster.cluster import Cluster`` is the way in; ``python -m localcluster up`` starts one by hand.
This file imports nothing, so that ``python -m localcluster.provision`` runs before there is a virtual environment.
"""
