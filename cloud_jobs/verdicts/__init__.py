"""Verdicts on alerts: confirmed, corrected or withdrawn; and late events without an alert. No Spark."""
