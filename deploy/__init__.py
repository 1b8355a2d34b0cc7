"""Waybill on one machine: the local stack, the demo and the drills. Also the files of an installation."""
