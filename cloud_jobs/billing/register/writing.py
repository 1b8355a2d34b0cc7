"""Issued documents into files: those of one document all or none; and a document that could not be written is named.

What a command that died has written is left as it is, so the same command again writes the rest.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cloud_jobs.billing.documents import DocumentError, Form, files_of, write_documents
from cloud_jobs.billing.register.documents_of import issued_document
from cloud_jobs.billing.register.ledger import IssuedDocument
from cloud_jobs.billing.register.tables import Register


class Unwritten(NamedTuple):
    """An issued document of which no file was written, and why: it is in the register all the same."""

    number: str
    reason: str
    command: str

    def __str__(self) -> str:
        return f"{self.number} is issued, but not written: {self.reason}; `{self.command}` writes it"


def write_issued(
    register: Register, documents: Iterable[IssuedDocument], folder: Path, forms: Collection[Form]
) -> Iterator[Unwritten]:
    """Write documents into a folder in some forms, one after the other; yields those that could not be written.

    Raises RegisterDamaged, LakeError, StoreUnavailable.
    """
    for one in documents:
        made = issued_document(register, one.number, one.key.legal_entity)
        try:
            files = files_of(made, forms)
            write_documents(folder, {name: one for name, one in files.items() if not _is_there(folder / name, one)})
        except DocumentError as error:
            yield Unwritten(one.number, str(error), _command(register, one, folder, forms))


def _command(register: Register, issued: IssuedDocument, folder: Path, forms: Collection[Form]) -> str:
    """What writes it later; the folder is perhaps another one then."""
    words = ["waybill", "bill", "show", issued.number, "--lake", str(register.lake.location)]
    words += ["--seller", issued.key.legal_entity, "--out", str(folder)]
    return shlex.join([*words, *(word for form in forms for word in ("--form", form.value))])


def _is_there(path: Path, content: Iterable[bytes]) -> bool:
    try:
        with path.open("rb") as file:
            return all(file.read(len(piece)) == piece for piece in content) and not file.read(1)
    except OSError:
        return False
