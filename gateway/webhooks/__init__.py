"""Delivery of alerts and verdicts: rules, webhooks, undelivered messages and `tail`. Imports no Spark."""
