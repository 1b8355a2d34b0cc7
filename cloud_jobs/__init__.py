"""The centre: Spark jobs from Pulsar topics to geofence events, encounters, usage and bills."""
