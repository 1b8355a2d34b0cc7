"""The daemon on the vehicle: durable buffer, drain, uplinks. Light: no numpy, no pyarrow."""
