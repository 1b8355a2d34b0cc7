"""The regional gateway: batches from the MQTT broker to Pulsar, acknowledged to devices after Pulsar's receipt."""
