"""Errors of alerts.

AlertError
├── MalformedAlert    a message is no alert or no verdict
└── UnusableRule      a text is no alert rule
"""

from __future__ import annotations


class AlertError(Exception):
    """The base of all."""


class MalformedAlert(AlertError):
    """Bytes that are no alert, or no verdict; the text says what of them is wrong."""


class UnusableRule(AlertError):
    """A text that is no alert rule; the message says what of it is wrong, each fault behind its place."""
