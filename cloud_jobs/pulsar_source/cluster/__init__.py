"""What the source asks of one Pulsar cluster and changes in it: by its admin REST and by clients of its brokers."""
