"""How Waybill is run: the local stack for a laptop and the tests, and the `waybill` command."""
