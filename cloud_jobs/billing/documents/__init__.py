"""Documents: an invoice, credit note or debit note as canonical JSON, and the forms that are made of that alone."""

from cloud_jobs.billing.documents.annex import unknown_way
from cloud_jobs.billing.documents.canonical import Document, canonical_bytes, head, read_document
from cloud_jobs.billing.documents.checks import check_taxes
from cloud_jobs.billing.documents.document import document, document_body, document_head
from cloud_jobs.billing.documents.errors import (
    DocumentError,
    MissingFact,
    NotIssued,
    NotWritten,
    UnreadableDocument,
    UnusableText,
)
from cloud_jobs.billing.documents.facts import CertificateSummary, DocumentType, InvoicingPeriod, PrecedingInvoice
from cloud_jobs.billing.documents.files import write_documents
from cloud_jobs.billing.documents.forms import DocumentContent, Form, document_to_html, files_of, to_pdf
from cloud_jobs.billing.documents.lines import charges_of
from cloud_jobs.billing.documents.tabular import to_csv, to_focus
from cloud_jobs.billing.documents.terminal import document_table
from cloud_jobs.billing.documents.ubl import to_ubl

__all__ = [
    "CertificateSummary",
    "Document",
    "DocumentContent",
    "DocumentError",
    "DocumentType",
    "Form",
    "InvoicingPeriod",
    "MissingFact",
    "NotIssued",
    "NotWritten",
    "PrecedingInvoice",
    "UnreadableDocument",
    "UnusableText",
    "canonical_bytes",
    "charges_of",
    "check_taxes",
    "document",
    "document_body",
    "document_head",
    "document_table",
    "document_to_html",
    "files_of",
    "head",
    "read_document",
    "to_csv",
    "to_focus",
    "to_pdf",
    "to_ubl",
    "unknown_way",
    "write_documents",
]
