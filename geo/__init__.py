"""Where things are (`spatial`), and how clusters copy each other (`replication`)."""
