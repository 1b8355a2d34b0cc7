"""What the source asks and tells one Pulsar cluster: by its admin REST and by clients of its brokers."""
