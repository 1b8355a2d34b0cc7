"""MQTT: the client, its session, and the broker's process."""
