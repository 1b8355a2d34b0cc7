"""The console: pages with a map of the fleet, its bills and its health, read from lake and topics. Read-only."""
