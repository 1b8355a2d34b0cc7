"""Published reference data: messages, trusted signatures and versions in force. Pure."""
