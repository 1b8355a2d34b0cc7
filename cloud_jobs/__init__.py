"""The centre: Spark jobs from Pulsar topics to geofence events, encounters, usage and the bill."""
