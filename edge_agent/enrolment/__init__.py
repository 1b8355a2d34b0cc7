"""Enrolment, use and renewal of the device's certificate. The intake never waits for it."""
