"""From Pulsar's topics to the records table: each record once, whatever arrives how often and from where."""
