"""Documents as canonical bytes: the same content gives the same bytes, and any change is detected."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import orjson

from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import Charge, signed_parts
from geo.reference.moments import stamp

# Errors of documents; each is a BillingError.


class DocumentError(BillingError):
    """Base of errors of documents."""


class UnusableText(DocumentError):
    """A text that documents cannot show."""

    def __init__(self, where: str, code_point: int) -> None:
        super().__init__(
            f"{where} has the character U+{code_point:04X}, which a document cannot show; publish it without"
        )


class UnusableFont(DocumentError):
    """The font of the settings cannot be used."""


class MissingFact(DocumentError):
    """A fact that EN 16931 requires is missing."""

    def __init__(self, what: str, rule: str) -> None:
        super().__init__(f"{what} (EN 16931, {rule})")


class UnreadableDocument(DocumentError):
    """Bytes that are no document of this version, or were changed."""


class NotIssued(DocumentError):
    """The form exists only for issued documents."""


class NotWritten(DocumentError):
    """Nothing was written."""


# The annex of a document: each vehicle's part of each line.

Columns = Mapping[str, Sequence[Any]]
Entry = dict[str, Any]
_COUNTED: Final = ("quantity_base", "free_base", "amount_minor")
_OF_CHARGE: Final = ("line", "tenant", "device", *_COUNTED)
_METERED: Final = ("rows", "first_hour", "last_hour", "digest")
_COLUMNS: Final = (*_OF_CHARGE, *_METERED, "parts", "gross_minor")
_NOT_METERED: Final = (None,) * len(_METERED)
_KEY: Final = attrgetter("key")


def annex_columns(charges_by_line: Iterable[Iterable[Charge]], sign: int) -> Columns:
    """The annex as columns: the charges of each line, numbered from 1, by vehicle."""
    numbers: list[int] = []
    charges: list[Charge] = []
    for number, of_line in enumerate(charges_by_line, 1):
        # the rest of the key is the same within a line
        charges += sorted(of_line, key=_KEY)
        numbers += [number] * (len(charges) - len(numbers))
    if not charges:
        return {name: [] for name in _COLUMNS}
    keys, *counted, metered, parts, gross = zip(*charges, strict=True)
    rows, first, last, digests = zip(*(one or _NOT_METERED for one in metered), strict=True)
    return {
        "line": numbers,
        "tenant": [key.tenant for key in keys],
        "device": [key.device for key in keys],
        **{name: [sign * value for value in values] for name, values in zip(_COUNTED, counted, strict=True)},
        "rows": rows,
        "first_hour": [one and stamp(one) for one in first],
        "last_hour": [one and stamp(one) for one in last],
        "digest": digests,
        "parts": [signed_parts(one, sign) for one in parts],
        "gross_minor": [sign * one for one in gross],
    }


class Annex:
    """The entries of a document's annex, built on access: all of them would need more memory than everything else."""

    def __init__(self, columns: Columns) -> None:
        self._columns = [columns[name] for name in _COLUMNS]

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[Entry]:
        return map(_entry, zip(*self._columns, strict=True))

    def __getitem__(self, some: slice) -> list[Entry]:
        return [_entry(row) for row in zip(*(column[some] for column in self._columns), strict=True)]


def _entry(row: Sequence[Any]) -> Entry:
    """`metered` is None for charges without usage rows, such as caps; only daily caps and facts have
    `parts`, only prices that include tax `gross_minor`.
    """
    metered = dict(zip(_METERED, row[len(_OF_CHARGE) : -2], strict=True))
    entry = dict(zip(_OF_CHARGE, row[: len(_OF_CHARGE)], strict=True))
    more = {name: value for name, value in zip(_COLUMNS[-2:], row[-2:], strict=True) if value}
    return {**entry, "metered": metered if metered["rows"] is not None else None, **more}


def columns_of_entries(entries: Sequence[Entry]) -> Columns:
    """The columns of annex entries. Raises KeyError, TypeError, AttributeError for invalid entries."""
    columns: dict[str, Sequence[Any]] = {name: [entry[name] for entry in entries] for name in _OF_CHARGE}
    metered = [entry["metered"] or dict.fromkeys(_METERED) for entry in entries]
    more = {
        "parts": [one.get("parts") for one in entries],
        "gross_minor": [one.get("gross_minor", 0) for one in entries],
    }
    return {**columns, **{name: [one[name] for one in metered] for name in _METERED}, **more}


Document = dict[str, Any]
"""Plain values: dicts with text keys, lists, texts, integers, booleans, None. No float. `annex` is an `Annex`, or the
list of its entries."""

FORMAT: Final = 1
BODY: Final = frozenset({"annex", "lines", "subtotals"})
"""The parts that do not depend on number and dates."""
_DIGEST: Final = "digest"
_BODY_DIGEST: Final = "body_digest"
_AT_ONCE: Final = 200
"""Elements of a long list that are encoded at once."""


def _entries(value: Any) -> list[Any]:
    # named tuples are lists
    if isinstance(value, Annex | tuple):
        return [*value]
    raise TypeError(f"{type(value).__name__} is not a plain value")


_OPTIONS: Final = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


def canonical_bytes(document: Document) -> bytes:
    """Sorted keys, no spaces, UTF-8, one line feed at the end."""
    return canonical_text(document).encode() + b"\n"


def canonical_text(value: Any) -> str:
    return orjson.dumps(value, _entries, _OPTIONS).decode()


def canonical_pieces(value: Any) -> Iterator[str]:
    """The canonical text piece by piece: the whole may be as large as all charges."""
    if isinstance(value, dict) and not _is_short(value):
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


def _is_short(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_short, value.values()))
    return not isinstance(value, list | tuple | Annex) or len(value) <= _AT_ONCE


def digest_of(pieces: Iterable[str]) -> str:
    """SHA-256 (hex) over canonical text given in pieces."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece.encode())
    found.update(b"\n")
    return found.hexdigest()


def head(made: Document) -> Document:
    """The document without its body. It contains `body_digest`, so its digest is that of the whole document."""
    return {name: value for name, value in made.items() if name not in BODY}


def read_document(content: bytes) -> Document:
    """The document with these canonical bytes. Raises UnreadableDocument."""
    try:
        document = orjson.loads(content)
    except ValueError as error:
        raise UnreadableDocument(f"this is not a document: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise UnreadableDocument("this is not a document: it names no format")
    name = document.get("invoice_number") or "without a number"
    if document["format"] != FORMAT:
        raise UnreadableDocument(
            f"document {name} is of format {document['format']}; this version reads {FORMAT}:"
            " use the version that issued it"
        )
    try:
        annex = columns_of_entries(document["annex"])
        body_digest = digest_of(canonical_pieces({**{name: document[name] for name in BODY}, "annex": annex}))
        unsealed = {**head(document), _BODY_DIGEST: body_digest}
        unsealed.pop(_DIGEST, None)
        seals = {_BODY_DIGEST: body_digest, _DIGEST: digest_of([canonical_text(unsealed)])}
        # compares bytes, so that a float or a repeated key is a change too
        is_same = canonical_bytes({**document, **seals, "annex": Annex(annex)}) == content
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise UnreadableDocument(f"the lines or the annex of document {name} cannot be read") from error
    if not is_same:
        raise UnreadableDocument(f"the content of document {name} changed after it was issued")
    return document
