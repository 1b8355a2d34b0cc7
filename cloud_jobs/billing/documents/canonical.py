"""The bytes of a document, and the document of bytes: the same content gives the same bytes, and a change is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from cloud_jobs.billing.documents.annex import Annex, columns_of_entries
from cloud_jobs.billing.documents.errors import UnreadableDocument

Document = dict[str, Any]
"""Plain values: dicts with text keys, lists, texts, integers, booleans, None. No float. `annex` is an `Annex`, or the
list of its entries."""

FORMAT: Final = 1
BODY: Final = frozenset({"annex", "lines", "subtotals", "unknown_ways"})
"""What is made of the charges and certificates alone, whatever number and dates the document gets."""
_DIGEST: Final = "digest"
_BODY_DIGEST: Final = "body_digest"
_AT_ONCE: Final = 200
"""So many elements of a long list are text at once."""


def _entries(value: Any) -> list[Any]:
    if isinstance(value, Annex):
        return [*value]
    raise TypeError(f"{type(value).__name__} is no plain value")


_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False, default=_entries
)


def canonical_bytes(document: Document) -> bytes:
    """Sorted keys, no blanks, UTF-8, one line feed at the end."""
    return canonical_text(document).encode() + b"\n"


def canonical_text(value: Any) -> str:
    """The one JSON text of a plain value."""
    return _ENCODER.encode(value)


def canonical_pieces(value: Any) -> Iterator[str]:
    """The canonical text of a document, or of a value of one, in pieces: the whole may be as large as all charges."""
    if isinstance(value, dict) and value:
        for at, name in enumerate(sorted(value)):
            yield f"{',' if at else '{'}{canonical_text(name)}:"
            yield from canonical_pieces(value[name])
        yield "}"
    elif isinstance(value, list | tuple | Annex) and len(value) > _AT_ONCE:
        for at in range(0, len(value), _AT_ONCE):
            yield f"{',' if at else '['}{canonical_text(value[at : at + _AT_ONCE])[1:-1]}"
        yield "]"
    else:
        yield canonical_text(value)


def digest_of(pieces: Iterable[str]) -> str:
    """SHA-256 (hex) over the canonical bytes whose text is given, in pieces."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece.encode())
    found.update(b"\n")
    return found.hexdigest()


def head(made: Document) -> Document:
    """The document without its body: what is known of it at a glance. The digest of the head is that of the whole,
    for `body_digest` stands in it."""
    return {name: value for name, value in made.items() if name not in BODY}


def read_document(content: bytes) -> Document:
    """The document whose canonical bytes these are. Raises UnreadableDocument."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnreadableDocument(f"this is no document: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise UnreadableDocument("this is no document: it does not say of which format it is")
    name = document.get("invoice_number") or "without a number"
    if document["format"] != FORMAT:
        raise UnreadableDocument(
            f"document {name} is of format {document['format']}; this version reads {FORMAT}:"
            " use the version that issued it"
        )
    try:
        annex = columns_of_entries(document["annex"])
        body_digest = digest_of(canonical_pieces({**{name: document[name] for name in BODY}, "annex": annex}))
    except (AttributeError, KeyError, TypeError) as error:
        raise UnreadableDocument(f"document {name} has no lines, or no annex, that can be read") from error
    unsealed = {**head(document), _BODY_DIGEST: body_digest}
    unsealed.pop(_DIGEST, None)
    seals = {_BODY_DIGEST: body_digest, _DIGEST: digest_of([canonical_text(unsealed)])}
    # by its bytes: a number that was written as a float, or a key that stands twice, is a change too
    if canonical_bytes({**document, **seals, "annex": Annex(annex)}) != content:
        raise UnreadableDocument(f"document {name} does not have the content it was issued with")
    return document
