"""What leaves for accounting: each document once, to the cent; and payments that come back, each once."""

import csv
import io
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloud_jobs.billing.register import commands
from cloud_jobs.billing.register.commands import NOT_ALL
from cloud_jobs.billing.register.payments import PaidState, balances
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import NOW, BilledLake, used
from tests.cloud_jobs.billing.register.test_close_facts import event, happen
from tests.cloud_jobs.billing.register.test_commands import run, values

INVOICE, NOTE, OTHER = "WB-EU-00000001", "WB-EU-00000003", "WB-EU-00000002"
DATEV = """
legal_entity = "waybill-eu"
consultant = 29098
client = 55003
fiscal_year = 2026-01-01
receivables = 1400
debtors = { beta = 10002 }
revenue = [{ vat = "S", rate = 19, account = 8400 }, { vat = "AE", account = 8337 }]
"""


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BilledLake:
    """10 km at 0.45 and 19 % are 5.36, 4 km without VAT 1.80; a note of 12 km then adds 1.07."""
    monkeypatch.setattr(commands, "checked_time", lambda _: NOW)
    made = BilledLake.create(tmp_path / "lake", "van-1", "van-2")
    reverse = {"category": "AE", "exemption_reason": "Reverse charge"}
    theirs = payer(vat=reverse, vat_id="FR40303265045")
    made.publish(
        legal_entity(),
        tariff(price()),
        account("acme", device("van-1"), name='=HYPERLINK("x") Łódź'),
        account("beta", device("van-2"), payer=theirs),
    )
    made.use(used("van-1", 10_000), used("van-2", 4_000))
    for command in ("close", "issue"):
        assert run(made, command, "--period", "2026-03").exit_code == 0
    made.use(used("van-1", 12_000))
    for command in ("close", "adjust"):
        run(made, command, "--period", "2026-03", "--payer", "acme")
    return made


ISSUED_ON = "2026"


def test_the_journal_has_each_document_once(books: BilledLake, tmp_path: Path) -> None:
    result = run(books, "journal", "--period", ISSUED_ON)
    assert result.exit_code == 0, result.output
    rows = [*csv.DictReader(io.StringIO(result.stdout))]
    assert [(one["document"], one["net"], one["tax"], one["gross"], one["preceding"]) for one in rows] == [
        (INVOICE, "4.50", "0.86", "5.36", ""),
        (OTHER, "1.80", "0.00", "1.80", ""),
        (NOTE, "0.90", "0.17", "1.07", INVOICE),
    ]
    assert [(one["vat_category"], one["vat_rate"]) for one in rows] == [("S", "19"), ("AE", "0"), ("S", "19")]
    assert rows[0]["buyer"].startswith("'=HYPERLINK"), "a spreadsheet computes nothing"
    file = tmp_path / "journal.csv"
    run(books, "journal", "--period", ISSUED_ON, "--out", str(file))
    assert file.read_bytes() == result.stdout_bytes
    empty = run(books, "journal", "--period", "2025")
    assert (empty.exit_code, empty.stdout.count("\n")) == (0, 1)
    assert "no document was issued from 2025-01-01 to 2025-12-31; a journal is by days of issue" in empty.stderr
    assert not result.stderr


def test_a_posting_batch_has_debtors_and_revenue_accounts(books: BilledLake, tmp_path: Path) -> None:
    chart = tmp_path / "datev.toml"
    chart.write_text(DATEV, encoding="utf-8")
    result = run(books, "journal", "--period", ISSUED_ON, "--datev", str(chart))
    assert result.exit_code == 0, result.output
    head, names, *lines = result.stdout_bytes.decode("cp1252").split("\r\n")
    assert head.startswith('"EXTF";700;21;"Buchungsstapel";13;')
    assert head.endswith(';29098;55003;20260101;4;20260101;20261231;"Waybill";"";1;0;0;"EUR";;;;;;;;;')
    assert {len(line.split(";")) for line in (names, *lines[:-1])} == {125}
    assert [line.split(";")[:10] for line in lines[:-1]] == [
        ["5,36", '"S"', '"EUR"', "", "", "", "1400", "8400", "", "0106"],
        ["1,80", '"S"', '"EUR"', "", "", "", "10002", "8337", "", "0106"],
        ["1,07", '"S"', '"EUR"', "", "", "", "1400", "8400", "", "0106"],
    ]
    assert '"Invoice =HYPERLINK(""x"") ?ód?"' in lines[0], "code page 1252 has no Ł and no ź"
    assert '"FR40303265045"' in lines[1]
    chart.write_text(DATEV.replace('"AE"', '"E"'), encoding="utf-8")
    refused = run(books, "journal", "--period", ISSUED_ON, "--datev", str(chart), "--out", str(tmp_path / "x.csv"))
    assert (refused.exit_code, "VAT AE 0, for which `revenue` has no account" in refused.stderr) == (1, True)
    assert not (tmp_path / "x.csv").exists()
    chart.write_text(DATEV.replace("2026-01-01", "2025-07-01"), encoding="utf-8")
    assert "not within the fiscal year" in run(books, "journal", "--period", "2026", "--datev", str(chart)).stderr


def paid(books: BilledLake, folder: Path, *rows: str, header: str = "document,date,amount,currency") -> str:
    file = folder / "payments.csv"
    file.write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    result = run(books, "paid", str(file), "--by", "A. Clerk")
    return f"{result.exit_code} {result.output}"


def states(books: BilledLake, now: datetime = datetime(2026, 6, 2, tzinfo=UTC)) -> dict[str, str]:
    found = books.register.documents()
    return {number: one.text for number, one in balances(books.register, found, now).items()}


def test_payments_are_imported_once_and_say_what_is_open(books: BilledLake, tmp_path: Path) -> None:
    assert {*states(books).values()} == {PaidState.UNKNOWN}
    assert "1 payments imported, 0 known already, 0 refused" in paid(books, tmp_path, f"{OTHER},2026-06-20,1.80,EUR")
    late = datetime(2026, 12, 1, tzinfo=UTC)
    # the note of 1.07 is part of its invoice
    assert states(books) == {INVOICE: "open 6.43 EUR", NOTE: "open 6.43 EUR", OTHER: "paid"}
    assert states(books, late)[INVOICE] == "overdue 6.43 EUR"
    rows = [f"{INVOICE},2026-06-20,5.00,EUR", f"{INVOICE},2026-06-20,5.00,EUR"]
    assert "0 2 payments imported" in paid(books, tmp_path, *rows), "equal rows of a file are two payments"
    assert "0 0 payments imported, 2 known already" in paid(books, tmp_path, *rows)
    assert states(books)[NOTE] == "overpaid 3.57 EUR"
    paid(books, tmp_path, f"{INVOICE},2026-06-21,-5.00,EUR")
    assert states(books)[INVOICE] == "part paid 1.43 EUR"
    assert states(books, late)[INVOICE] == "overdue 1.43 EUR"
    assert "Payment: " in run(books, "show", INVOICE).stdout
    [first, *_] = values(run(books, "list", "--json"))
    assert (first["paid_minor"], first["open_minor"]) == (500, 143)
    # an equal payment with a reference of its own is another
    assert "0 1 payments imported" in paid(
        books, tmp_path, f"{INVOICE},2026-06-20,5.00,EUR,tx-9", header="document,date,amount,currency,reference"
    )


def test_a_negative_invoice_is_a_credit_until_it_is_paid_out(tmp_path: Path) -> None:
    # the second of a pair costs less than the first did alone in the month before
    alone = price("3.00", meter="passage", unit="each", zone="*")
    lake, pair = BilledLake.create(tmp_path / "lake", "van-1"), {"zone": "g2", "after": "g1", "within": 60}
    lake.publish(legal_entity(), tariff(alone, alone | pair | {"unit_amount": "2.00"}), account("acme", device()))
    lake.use()
    happen(lake, *(event("forward", at / 1440, place=gate, id=gate) for gate, at in (("g1", -10), ("g2", 10))))
    lake.close("one")
    [issued] = lake.issue("one").documents
    assert (issued.gross_minor, issued.due_date) == (-119, None)
    for amount, state in (("-1.00", "credit 0.19 EUR"), ("-0.19", "paid"), ("1.24", "overpaid 1.24 EUR")):
        paid(lake, tmp_path, f"{issued.number},2026-06-20,{amount},EUR")
        assert states(lake) == {issued.number: state}


def test_refused_rows_are_named_and_lose_no_other(books: BilledLake, tmp_path: Path) -> None:
    wrong = {
        "WB-EU-00000009,2026-06-20,1.00,EUR": "there is no document 'WB-EU-00000009'",
        f"{OTHER},2026-06-20,1.00,USD": f"{OTHER} is in EUR, not in 'USD'",
        f"{OTHER},20.06.2026,1.00,EUR": "date: Input should be a valid date in the format YYYY-MM-DD",
        f'{OTHER},2026-06-20,"1,00",EUR': "amount: String should match pattern",
        f"{OTHER},2026-06-20,0.001,EUR": "has more decimals than EUR",
        f"{OTHER},2026-06-20,1.00,EUR,tx": "None: Extra inputs are not permitted",
        f"{OTHER},2026-06-20,1.{'0' * 30}1,EUR": "amount: ",
        f"{OTHER},2026-06-20,1.00": f"{OTHER} is in EUR, not in ''",
        f'{OTHER},2026-06-20,1.00,"EUR': "it is no row of a CSV (unexpected end of data)",
        f'{OTHER},2026-06-20,"1.00"0,EUR': 'write a quote within a cell twice, in a quoted cell: "Miller ""M"" Ltd"',
        f"{OTHER},2026-06-20,900000000000.00,EUR": "too large",
    }
    said = paid(books, tmp_path, *wrong, f"{OTHER},2026-06-20,1.80,EUR")
    assert said.startswith(f"{NOT_ALL} 1 payments imported, 0 known already, {len(wrong)} refused")
    for line, reason in enumerate(wrong.values(), 2):
        assert f"payments.csv:{line}: " in said
        assert reason in said
    assert "; write a day as 2026-12-01 and an amount as 1234.50" in said
    assert states(books)[OTHER] == "paid"
    other = paid(books, tmp_path, f"{OTHER};2026-06-20;1.80;EUR", header="document;date;amount;currency")
    assert other.startswith("1 ")
    assert "must name the columns document,date,amount,currency, with commas" in other
    (tmp_path / "payments.csv").write_bytes(f"{OTHER},2026-06-20,1.80,EUR,Müller".encode("cp1252"))
    assert "save it as UTF-8" in " ".join(run(books, "paid", str(tmp_path / "payments.csv")).stderr.split())
