"""Small Pulsar clusters in a namespace of a Kubernetes cluster, with TLS, tokens and the topology: for proofs."""
