"""Waybill on one machine, to try it out: the local stack, the demo and the drills. Also what an installation copies."""
