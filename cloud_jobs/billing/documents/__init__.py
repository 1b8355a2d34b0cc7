"""Invoices, credit notes and debit notes as canonical JSON, and all formats derived from it."""

from cloud_jobs.billing.documents.canonical import (
    Document,
    DocumentError,
    MissingFact,
    NotWritten,
    UnreadableDocument,
    UnusableText,
    canonical_bytes,
    head,
    read_document,
)
from cloud_jobs.billing.documents.cii import to_cii
from cloud_jobs.billing.documents.document import (
    CertificateSummary,
    DocumentType,
    InvoicingPeriod,
    PrecedingInvoice,
    Preview,
    charges_of,
    check_taxes,
    document_body,
    document_head,
)
from cloud_jobs.billing.documents.forms import (
    DocumentContent,
    Form,
    document_table,
    files_of,
    to_csv,
    to_pdf,
    write_documents,
)
from cloud_jobs.billing.documents.look import PLAIN, Look
from cloud_jobs.billing.documents.ubl import to_ubl

__all__ = [
    "PLAIN",
    "CertificateSummary",
    "Document",
    "DocumentContent",
    "DocumentError",
    "DocumentType",
    "Form",
    "InvoicingPeriod",
    "Look",
    "MissingFact",
    "NotWritten",
    "PrecedingInvoice",
    "Preview",
    "UnreadableDocument",
    "UnusableText",
    "canonical_bytes",
    "charges_of",
    "check_taxes",
    "document_body",
    "document_head",
    "document_table",
    "files_of",
    "head",
    "read_document",
    "to_cii",
    "to_csv",
    "to_pdf",
    "to_ubl",
    "write_documents",
]
