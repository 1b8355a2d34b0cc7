"""A real Kubernetes on one machine: control plane and nodes in network namespaces, without any image registry.

`python -m deploy.kubernetes.cluster up` needs root, and what `make kubernetes-tools` builds. Pods reach each other, and
nothing outside.
"""
