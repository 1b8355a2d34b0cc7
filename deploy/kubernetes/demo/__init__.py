"""The demo on a Kubernetes cluster: vehicles outside, a region and the centre inside, the truth at the end."""
