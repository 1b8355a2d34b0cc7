"""What can keep a document from being made, read or written; each is a BillingError.

DocumentError
├── UnusableText       a text has a character that no invoice can show: a control, a direction override, half a pair
├── MissingFact        the seller, the buyer or the kind of document lacks what EN 16931 asks for
├── UnreadableDocument bytes that are no document, are of another format, or were changed since
├── NotIssued          a draft was asked for in a form that only an issued document has
└── NotWritten         the files of a document could not be written; none of them is there
"""

from __future__ import annotations

from cloud_jobs.billing.errors import BillingError


class DocumentError(BillingError):
    """Base of everything that keeps a document from being made, read or written."""


class UnusableText(DocumentError):
    """A text that would not be shown as it is stored."""

    def __init__(self, where: str, code_point: int) -> None:
        super().__init__(
            f"{where} has the character U+{code_point:04X}, which a document cannot show; publish it without"
        )
        self.where = where
        self.code_point = code_point


class MissingFact(DocumentError):
    """A fact without which the document is not valid."""

    def __init__(self, what: str, rule: str) -> None:
        super().__init__(f"{what} (EN 16931, {rule})")
        self.rule = rule


class UnreadableDocument(DocumentError):
    """Bytes that are not a document as this version writes it."""


class NotIssued(DocumentError):
    """A draft has no number, so it is no invoice."""


class NotWritten(DocumentError):
    """Nothing was written."""
