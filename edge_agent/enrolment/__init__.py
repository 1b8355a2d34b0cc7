"""How the device gets its operational certificate, shows it, and renews it. Intake does not wait for any of it."""
