"""From Pulsar's topics to the records table: each name once, whatever arrives how often and from where."""
