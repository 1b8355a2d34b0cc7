"""A document of very many vehicles is written piece by piece: its forms are larger than all else that is held."""

from __future__ import annotations

import tracemalloc
from functools import cache

import pytest

from cloud_jobs.billing.documents import Document, DocumentContent, Form, canonical_bytes, read_document
from tests.cloud_jobs.billing.documents.rated import charge, issued, taxed

VEHICLES = 8000
HELD = 1_500_000


@cache
def large() -> Document:
    return issued(taxed([charge(device=f"eu-{number:05}") for number in range(VEHICLES)]))


@pytest.mark.parametrize("form", [Form.JSON, Form.CSV, Form.FOCUS])
def test_of_a_large_document_never_more_than_a_part_is_held(form: Form) -> None:
    content = DocumentContent(large(), form)
    tracemalloc.start()
    try:
        size = sum(len(piece) for piece in content)
        _, held = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > HELD
    assert held < HELD


def test_pieces_of_json_are_the_canonical_bytes_and_are_read_back() -> None:
    content = bytes(DocumentContent(large(), Form.JSON))
    assert content == canonical_bytes(large())
    assert [*read_document(content)["annex"]] == [*large()["annex"]]
