"""A document of very many vehicles is written piece by piece: its forms are larger than all else that is held."""

import csv
import io
import re
import tracemalloc
from collections.abc import Iterable
from decimal import Decimal
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from reportlab.platypus import Paragraph
from rich.console import Console

from cloud_jobs.billing.documents import (
    Document,
    DocumentContent,
    DocumentType,
    Form,
    NotWritten,
    canonical_bytes,
    document_table,
    read_document,
    to_csv,
    to_pdf,
    write_documents,
)
from cloud_jobs.billing.documents.look import ENGLISH
from cloud_jobs.billing.rating import ChargeKind, RatedAccount
from tests.cloud_jobs.billing.documents.rated import buyer, charge, fixed, issued, rated_accounts, taxed
from tests.cloud_jobs.billing.documents.test_document import KINDS, document_of

VEHICLES = 8000
HELD = 1_500_000


@cache
def large() -> Document:
    return issued(taxed([charge(device=f"eu-{number:05}") for number in range(VEHICLES)]))


@pytest.mark.parametrize("form", [Form.JSON, Form.CSV])
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


FLEET = [*(charge(device=f"eu-{number:04}") for number in range(10)), fixed(-120, ChargeKind.CAP, region="eu")]


def test_the_first_page_has_all_that_is_needed_to_pay() -> None:
    shown = io.StringIO()
    Console(file=shown, width=400).print(document_table(issued(taxed(FLEET))))
    text = " ".join(re.sub("[│┃]", " ", shown.getvalue()).split())
    for needed in (
        "Invoice WB-000042",
        "Waybill Telematik GmbH",
        "Acme Logistics & Söhne",
        "VAT id FR40303265045",
        "2026-04-02",
        "2026-05-02",
        "2026-03-01 to 2026-03-31 (Europe/Berlin)",
        "DE02 1203 0000 0000 2020 51",
        "Amount due 534.07 EUR",
        "PO 2026-17",
    ):
        assert needed in text


def pages(content: bytes) -> int:
    return int(re.findall(rb"/Count (\d+)", content)[0])


def test_it_is_a_pdf_with_its_annex_on_a_page_of_its_own() -> None:
    content = to_pdf(issued(taxed(FLEET)))
    assert content.startswith(b"%PDF-")
    assert content.endswith(b"%%EOF\n")
    assert pages(content) == 2


@settings(max_examples=10)
@given(rated_accounts(), KINDS)
def test_the_same_document_gives_the_same_bytes(rated: RatedAccount, kind: object) -> None:
    assert to_pdf(document_of(rated)) == to_pdf(document_of(rated))


@pytest.mark.parametrize("text", ["東京", "שלום", "🚚"])
def test_what_the_font_cannot_show_is_shown_by_its_number_not_left_out(text: str) -> None:
    with patch("cloud_jobs.billing.documents.pdf.Paragraph", wraps=Paragraph) as made:
        to_pdf(issued(taxed([charge(zone=text)])), ENGLISH)
    number = f"[U+{ord(text[0]):04X}]"
    assert any(f"zone {number}" in call.args[0] for call in made.call_args_list)


NUMBER = re.compile(r"-?\d+(\.\d+)?")


def rows(content: Iterable[bytes]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(b"".join(content).decode(), newline="")))


@given(rated_accounts(), KINDS)
def test_the_csv_has_each_charge_and_adds_up_to_what_is_posted(rated: RatedAccount, kind: DocumentType) -> None:
    found = rows(to_csv(document_of(rated, kind)))
    assert len(found) == len(rated.charges)
    digits = {"EUR": 2, "JPY": 0, "JOD": 3}[rated.currency]
    assert sum(Decimal(row["posted_amount"]) for row in found) * 10**digits == rated.net_minor
    quantities = sum(int(row["quantity_base"] or 0) for row in found)
    assert quantities == sum(one.quantity for one in rated.charges if one.key.meter)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", '=cmd|" /C calc"!A0'])
def test_a_name_is_no_formula(text: str) -> None:
    made = issued(taxed([charge(device=text, price=text)]), buyer=buyer(name=text))
    for row in rows(to_csv(made)):
        cells = {name: cell for name, cell in row.items() if not NUMBER.fullmatch(cell)}
        assert [name for name, cell in cells.items() if cell.startswith(("=", "+", "-", "@"))] == []
        assert f"'{text}" in row.values()


FILES = {"WB-1.json": b"{}", "WB-1.pdf": b"%PDF", "WB-1.csv": b""}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_files_are_in_the_folder_and_nothing_else(tmp_path: Path) -> None:
    write_documents(tmp_path / "2026" / "03", FILES)
    assert contents(tmp_path / "2026" / "03") == FILES


@pytest.mark.parametrize(
    "name",
    ["../evil", "../../evil", "/etc/evil", "a/b", "", ".", "..", ".hidden", "a\x00b", "a\nb", "ä", "x" * 129, "a\\b"],
)
def test_a_name_that_leads_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    with pytest.raises(NotWritten):
        write_documents(folder, {**FILES, name: b"evil"})
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("taken", sorted(FILES))
def test_a_name_that_is_taken_keeps_its_content_and_nothing_is_written(taken: str, tmp_path: Path) -> None:
    (tmp_path / taken).write_bytes(b"issued before")
    with pytest.raises(NotWritten, match="already"):
        write_documents(tmp_path, FILES)
    assert contents(tmp_path) == {taken: b"issued before"}


@pytest.mark.parametrize("there", [True, False], ids=["a link", "a dangling link"])
def test_a_link_of_that_name_is_not_followed(there: bool, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    folder.mkdir()
    if there:
        outside.write_bytes(b"mine")
    (folder / "WB-1.csv").symlink_to(outside)
    with pytest.raises(NotWritten):
        write_documents(folder, FILES)
    assert outside.exists() is there
    assert not there or outside.read_bytes() == b"mine"
    assert [path.name for path in folder.iterdir()] == ["WB-1.csv"]
