"""Settings that the gateway pushes: operators sign them, a device tries them and keeps what works."""
