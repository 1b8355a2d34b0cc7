"""Foreign messages of a vehicle, translated into the bodies of records."""
