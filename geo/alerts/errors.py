"""Errors of alerts.

AlertError
└── MalformedAlert    a message is no alert or no verdict
"""

from __future__ import annotations


class AlertError(Exception):
    """The base of all."""


class MalformedAlert(AlertError):
    """Bytes that are no alert, or no verdict; the text says what of them is wrong."""
