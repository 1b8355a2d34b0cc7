"""The page about invoices says what stands in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cloud_jobs.billing.documents import DocumentType
from tests.cloud_jobs.billing.documents.rated import charge, issued, taxed

PAGE = (Path(__file__).parents[4] / "docs" / "invoices.md").read_text(encoding="utf-8")
NOTE = issued(taxed([charge(amount_minor=-450)]), DocumentType.CREDIT_NOTE)


def names_in(value: Any) -> Iterator[str]:
    match value:
        case dict():
            for name, inner in value.items():
                yield name
                yield from names_in(inner)
        case list():
            for inner in value:
                yield from names_in(inner)


def test_every_part_of_a_document_is_explained_and_every_name_of_the_page_is_in_it() -> None:
    rows = PAGE.split("## What stands in it\n", 1)[1].split("\n## ", 1)[0].splitlines()
    explained = {name for row in rows if row.startswith("| `") for name in re.findall(r"`(\w+)`", row)}
    assert len(explained) > 40
    assert explained - set(names_in(NOTE)) - {"free"} == set()
    assert NOTE.keys() - explained - {"format"} == set()
