"""The bytes of a document, and the document of bytes: the same content gives the same bytes, and a change is found."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from cloud_jobs.billing.documents.errors import UnreadableDocument

Document = dict[str, Any]
"""Plain values: dicts with text keys, lists, texts, integers, booleans, None. No float."""

FORMAT: Final = 1
_DIGEST: Final = "digest"


def canonical_bytes(document: Document) -> bytes:
    """Sorted keys, no blanks, UTF-8, one line feed at the end."""
    return canonical_text(document).encode() + b"\n"


def canonical_text(document: Document) -> str:
    """`canonical_bytes` as text, without the line feed."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)


def sealed(content: Document, text: str | None = None) -> Document:
    """The document with the digest of all else that is in it; `text`: its canonical text, for a caller that has it."""
    assert _DIGEST not in content
    made = canonical_text(content) if text is None else text
    return {**content, _DIGEST: hashlib.sha256(made.encode() + b"\n").hexdigest()}


def read_document(content: bytes) -> Document:
    """The document whose canonical bytes these are. Raises UnreadableDocument."""
    try:
        document = json.loads(content)
    except ValueError as error:
        raise UnreadableDocument(f"this is no document: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise UnreadableDocument("this is no document: it does not say of which format it is")
    name = document.get("invoice_number") or "without a number"
    if document["format"] != FORMAT:
        raise UnreadableDocument(
            f"document {name} is of format {document['format']}; this version reads {FORMAT}:"
            " use the version that issued it"
        )
    # by its bytes: a number that was written as a float, or a key that stands twice, is a change too
    unsealed = {key: value for key, value in document.items() if key != _DIGEST}
    if canonical_bytes(sealed(unsealed)) != content:
        raise UnreadableDocument(f"document {name} does not have the content it was issued with")
    return document
