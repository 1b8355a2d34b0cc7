"""Documents: an invoice, credit note or debit note as canonical JSON, and the forms that are made of that alone."""

from cloud_jobs.billing.documents.canonical import Document, canonical_bytes, read_document
from cloud_jobs.billing.documents.document import document, head
from cloud_jobs.billing.documents.errors import (
    DocumentError,
    MissingFact,
    NotIssued,
    NotWritten,
    UnreadableDocument,
    UnusableText,
)
from cloud_jobs.billing.documents.facts import CertificateSummary, DocumentType, InvoicingPeriod, PrecedingInvoice
from cloud_jobs.billing.documents.lines import charges_of

__all__ = [
    "CertificateSummary",
    "Document",
    "DocumentError",
    "DocumentType",
    "InvoicingPeriod",
    "MissingFact",
    "NotIssued",
    "NotWritten",
    "PrecedingInvoice",
    "UnreadableDocument",
    "UnusableText",
    "canonical_bytes",
    "charges_of",
    "document",
    "head",
    "read_document",
]
