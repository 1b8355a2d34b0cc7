"""Waybill on Kubernetes."""
