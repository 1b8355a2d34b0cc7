"""What a daemon needs: logs, signals, files written durably, status, TLS."""
