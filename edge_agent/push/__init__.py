"""Pushed settings: operators sign them, and a device keeps them after a successful trial."""
