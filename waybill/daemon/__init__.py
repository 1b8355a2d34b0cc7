"""Building blocks of daemons: logs, signals, durable files, status and TLS."""
