"""Enrolment, use and renewal of the device's certificate."""
