"""A canary vehicle with a known route, checked at every hop from the broker to the invoice."""
