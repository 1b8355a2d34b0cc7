"""Delivery of alerts and verdicts: rules, webhooks, what nobody took, and a tail for people. Imports no Spark."""
