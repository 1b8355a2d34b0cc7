"""The forms in which a document is shown and written: what each is called, its file, and its bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from rich.console import Console

from cloud_jobs.billing.documents.canonical import Document, canonical_pieces
from cloud_jobs.billing.documents.tabular import to_csv, to_focus
from cloud_jobs.billing.documents.terminal import document_table
from cloud_jobs.billing.documents.ubl import to_ubl
from cloud_jobs.fitted_table import PIPE_WIDTH


def document_to_html(document: Document) -> str:
    """A document as a page (see `html`)."""
    # imported when it is asked for, as is what draws a PDF: together they take longer than all that shows a table
    from cloud_jobs.billing.documents.html import document_to_html as made  # noqa: PLC0415

    return made(document)


def to_pdf(document: Document) -> bytes:
    """A document as a PDF (see `pdf`). Raises UnusableText."""
    from cloud_jobs.billing.documents.pdf import to_pdf as made  # noqa: PLC0415

    return made(document)


class Form(StrEnum):
    """What a document can be asked for as."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"
    PDF = "pdf"
    CSV = "csv"
    FOCUS = "focus"
    UBL = "ubl"


class _Made(NamedTuple):
    suffix: str
    pieces: Callable[[Document], Iterable[bytes]]


def _text(document: Document) -> Iterator[bytes]:
    file = io.StringIO()
    Console(file=file, width=PIPE_WIDTH).print(document_table(document))
    yield file.getvalue().encode()


def _json(document: Document) -> Iterator[bytes]:
    for piece in canonical_pieces(document):
        yield piece.encode()
    yield b"\n"


_MADE: Final[Mapping[Form, _Made]] = {
    Form.TABLE: _Made(".txt", _text),
    Form.JSON: _Made(".json", _json),
    Form.HTML: _Made(".html", lambda document: [document_to_html(document).encode()]),
    Form.PDF: _Made(".pdf", lambda document: [to_pdf(document)]),
    Form.CSV: _Made(".csv", to_csv),
    Form.FOCUS: _Made(".focus.csv", to_focus),
    Form.UBL: _Made(".xml", lambda document: [to_ubl(document)]),
}


@dataclass(frozen=True, slots=True)
class DocumentContent:
    """The bytes of a document in one form, in pieces that are made each time somebody asks for them: the whole may be
    larger than all else. Asking raises NotIssued (FOCUS and UBL of a draft), before the first piece."""

    document: Document
    form: Form

    def __iter__(self) -> Iterator[bytes]:
        return iter(_MADE[self.form].pieces(self.document))

    def __bytes__(self) -> bytes:
        return b"".join(self)


def files_of(document: Document, forms: Collection[Form]) -> dict[str, DocumentContent]:
    """The files of an issued document in some forms, by name: its number and what each form ends with."""
    return {f"{document['invoice_number']}{_MADE[form].suffix}": DocumentContent(document, form) for form in forms}
