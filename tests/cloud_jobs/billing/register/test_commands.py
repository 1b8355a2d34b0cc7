"""The clerk's commands on a lake: what they print, how they end, and what they never write."""

import base64
import io
import json
import re
from datetime import date, timedelta
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from cloud_jobs.billing.documents import Form
from cloud_jobs.billing.register.commands import NOT_ALL, app
from cloud_jobs.billing.register.documents_of import issued_document, look_of
from cloud_jobs.lake import tables as store_clock
from cloud_jobs.reference.tables import note_taken
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import HOUR, BilledLake, used


@pytest.fixture
def billed(tmp_path: Path) -> BilledLake:
    made = BilledLake.create(tmp_path / "lake", "van-1")
    made.publish(legal_entity(), tariff(price()), account("acme", device("van-1")), account("beta", device("van-2")))
    made.use(used("van-1", 10_000), used("van-2", 4_000))
    return made


def run(billed: BilledLake, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--lake", str(billed.lake.location)])


def values(result: Result) -> Any:
    return json.loads(result.stdout)


def test_a_clerk_closes_issues_shows_and_adjusts(billed: BilledLake, tmp_path: Path) -> None:
    closed = run(billed, "close", "--period", "2026-03", "--json")
    assert closed.exit_code == NOT_ALL, closed.output
    assert {one["payer"]: one["outcome"] for one in values(closed)} == {"acme": "final", "beta": "provisional"}
    assert "van-2: never sent anything" in run(billed, "close", "--period", "2026-03").stdout
    issued = run(billed, "issue", "--period", "2026-03", "--json", "--by", "A. Clerk")
    assert issued.exit_code == NOT_ALL, issued.output
    assert [one["number"] for one in values(issued)["documents"]] == ["WB-EU-00000001"]
    assert [one["kind"] for one in values(issued)["refused"]] == ["NotFinal"]
    shown = run(billed, "show", "WB-EU-00000001", "--json")
    assert shown.exit_code == 0, shown.output
    written = run(billed, "show", "WB-EU-00000001", "--out", str(tmp_path / "out"))
    assert written.stdout == f"{tmp_path / 'out' / 'WB-EU-00000001.json'}\n"
    assert (tmp_path / "out" / "WB-EU-00000001.json").read_bytes() == shown.stdout_bytes
    assert "Waybill Europe GmbH" in run(billed, "show", "WB-EU-00000001").stdout
    billed.use(used("van-1", 12_000))
    run(billed, "close", "--period", "2026-03", "--payer", "acme")
    difference = values(run(billed, "diff", "--period", "2026-03", "--payer", "acme", "--json"))
    assert (difference["invoice"], difference["net_minor"]) == ("WB-EU-00000001", 90)
    assert "WB-EU-00000001" in run(billed, "diff", "--period", "2026-03", "--payer", "acme").stdout
    adjusted = run(billed, "adjust", "--period", "2026-03", "--payer", "acme", "--json")
    assert (adjusted.exit_code, values(adjusted)["documents"][0]["type"]) == (0, "383")
    again = run(billed, "adjust", "--period", "2026-03", "--payer", "acme")
    assert (again.exit_code, "nothing to adjust: " in again.stderr) == (0, True)
    voided = run(billed, "void", "WB-EU-00000001", "--reason", "wrong buyer", "--by", "A. Clerk")
    assert voided.exit_code == 0, voided.output
    listed = values(run(billed, "list", "--period", "2026-03-15", "--json"))
    assert [(one["type"], one["gross_minor"], one["is_void"]) for one in listed] == [
        ("380", 536, False),
        ("383", 107, False),
        ("381", -643, True),
    ]


def test_the_snapshot_of_a_closing_closes_again_the_same(billed: BilledLake) -> None:
    (first, _) = values(run(billed, "close", "--period", "2026-03", "--json"))
    billed.use(used("van-1", 99_000))
    (again, _) = values(run(billed, "close", "--period", "2026-03", "--json", "--snapshot", first["snapshot"]))
    assert {name for name in first if first[name] != again[name]} == {"closing"}
    unknown = run(billed, "close", "--period", "2026-03", "--snapshot", "9-aaaaaaaaaaaa")
    assert (unknown.exit_code, unknown.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "..", "Acme", "", "a/b"])
def test_an_id_that_leads_out_of_a_folder_is_no_id(billed: BilledLake, name: str) -> None:
    for command in ("close", "issue", "adjust", "diff", "list"):
        result = run(billed, command, "--period", "2026-03", "--payer", name)
        assert result.exit_code == 2, command
        assert "is not an account id" in " ".join(result.stderr.split())


@pytest.mark.parametrize("text", ["2026-13", "March", "2026-03-31/2026-03-01"])
@pytest.mark.parametrize("command", ["close", "issue", "adjust", "list", "diff"])
def test_a_period_that_is_none_is_a_wrong_option_and_nothing_is_written(
    billed: BilledLake, text: str, command: str
) -> None:
    before = sorted(Path(str(billed.lake.location)).rglob("*"))
    result = run(billed, command, "--period", text, *(["--payer", "acme"] if command == "diff" else []))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Invalid value for '--period'" in result.stderr
    assert sorted(Path(str(billed.lake.location)).rglob("*")) == before


@pytest.mark.parametrize(
    "command", [one.name or one.callback.__name__ for one in app.registered_commands if one.callback]
)
def test_every_command_says_how_it_ends(command: str) -> None:
    # as wide as it takes: a line of help is wrapped at the terminal's width
    shown = " ".join(CliRunner().invoke(app, [command, "--help"]).stdout.split())
    assert "Exit status: 0 " in shown


def test_contracts_that_were_restored_away_are_not_closed_as_nothing_owed(billed: BilledLake) -> None:
    assert values(run(billed, "close", "--period", "2026-03", "--json"))[0]["net_minor"] > 0
    rmtree(billed.lake.path("reference"))
    refused = run(billed, "close", "--period", "2026-03", "--json")
    assert (refused.exit_code, "restore all tables from one copy" in refused.stderr) == (1, True)
    assert not billed.lake.has("reference")


def test_a_note_says_why_it_was_made(billed: BilledLake) -> None:
    for metres, words in ((10_000, ()), (12_000, ()), (13_000, ("--reason", "a late batch"))):
        billed.use(used("van-1", metres))
        run(billed, "close", "--period", "2026-03", "--payer", "acme")
        run(billed, "issue", "--period", "2026-03", "--payer", "acme")
        run(billed, "adjust", "--period", "2026-03", "--payer", "acme", *words)
    [invoice, usual, given] = values(run(billed, "list", "--json"))
    notes = [values(run(billed, "show", one["number"], "--json"))["invoice_note"] for one in (invoice, usual, given)]
    assert notes[0] is None
    assert notes[1].startswith("Changes since then, by snapshot 2-")
    assert notes[2] == given["reason"] == "a late batch"
    refused = run(billed, "adjust", "--period", "2026-03", "--reason", "x")
    assert (refused.exit_code, "it needs a reason" in refused.stderr) == (1, True)


def test_a_document_looks_as_its_seller_and_its_payer_want_it(billed: BilledLake) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (30, 10)).save(picture, "PNG")
    stated = {"logo": base64.b64encode(picture.getvalue()).decode(), "colour": "#006e5a"}
    before = legal_entity(), tariff(price()), account("acme", device("van-1")), account("beta", device("van-2"))
    acme = account("acme", device("van-1") | {"name": "HH-WB 17"}, payer=payer(language="fr"))
    # a logo of a later time is not that of this period
    later = legal_entity(effective_from="2026-06-01T00:00:00Z", colour="#ff0000")
    billed.publish(*before, legal_entity(**stated), acme, later)
    run(billed, "close", "--period", "2026-03", "--payer", "acme")
    run(billed, "issue", "--period", "2026-03", "--payer", "acme")
    look = look_of(billed.lake, issued_document(billed.register, "WB-EU-00000001"))
    assert (look.language, look.logo, look.colour) == ("fr", picture.getvalue(), "#006e5a")
    assert look.vehicles == {"fleet/van-1": "HH-WB 17"}
    # the terminal's is English, unless it is told
    assert "Amount due" in run(billed, "show", "WB-EU-00000001").stdout
    assert "Zu zahlen" in run(billed, "show", "WB-EU-00000001", "--language", "de").stdout
    # what a document looks like is no part of what is owed, nor of what the register keeps
    [closing] = billed.register.closings(date(2026, 3, 1), date(2026, 3, 31), ["acme"])
    assert not {"logo", "colour", "language"}.intersection(re.findall(r'"(\w+)":', closing.parties))


FORMS = {
    "json": (".json", b'{"annex"'),
    "pdf": (".pdf", b"%PDF-"),
    "csv": (".csv", b"invoice_number,"),
    "ubl": (".xml", b"<?xml"),
    "cii": (".cii.xml", b"<?xml"),
}


def test_all_forms_are_written_while_issuing_and_are_those_that_are_shown(billed: BilledLake, tmp_path: Path) -> None:
    assert FORMS.keys() == {*Form}
    run(billed, "close", "--period", "2026-03", "--payer", "acme")
    asked = [word for form in FORMS for word in ("--form", form)]
    issued = run(billed, "issue", "--period", "2026-03", "--payer", "acme", "--out", str(tmp_path / "out"), *asked)
    assert issued.exit_code == 0, issued.output
    for form, (suffix, begin) in FORMS.items():
        content = (tmp_path / "out" / f"WB-EU-00000001{suffix}").read_bytes()
        assert begin in content[:300], form
        assert run(billed, "show", "WB-EU-00000001", "--form", form).stdout_bytes == content
    assert len([*(tmp_path / "out").iterdir()]) == len(FORMS)


def test_what_is_issued_and_could_not_be_written_is_named_and_written_later(billed: BilledLake, tmp_path: Path) -> None:
    run(billed, "close", "--period", "2026-03", "--payer", "acme")
    (tmp_path / "file").write_bytes(b"no folder")
    issued = run(billed, "issue", "--period", "2026-03", "--payer", "acme", "--out", str(tmp_path / "file"))
    assert issued.exit_code == NOT_ALL, issued.output
    assert "WB-EU-00000001 is issued, but not written" in issued.stderr
    assert run(billed, "show", "WB-EU-00000001", "--out", str(tmp_path / "out")).exit_code == 0
    assert (tmp_path / "out" / "WB-EU-00000001.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("show", "WB-EU-00000001", "--form", "pdf", "--form", "ubl"),
        ("issue", "--period", "2026-03", "--form", "pdf"),
        ("adjust", "--period", "2026-03", "--form", "pdf"),
    ],
)
def test_forms_without_a_folder_are_refused_before_anything_is_done(billed: BilledLake, words: tuple[str, ...]) -> None:
    run(billed, "close", "--period", "2026-03", "--payer", "acme")
    result = run(billed, *words)
    assert (result.exit_code, "--out" in result.stderr) == (2, True)
    assert billed.register.documents() == []


@pytest.mark.parametrize("command", ["issue", "adjust"])
def test_a_period_that_nobody_closed_is_no_success(billed: BilledLake, command: str) -> None:
    result = run(billed, command, "--period", "2026-02")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no payer was closed for 2026-02" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        *([one, "--period", "2026-03"] for one in ("close", "issue", "adjust", "list")),
        ["diff", "--period", "2026-03", "--payer", "acme"],
        ["show", "WB-EU-00000001"],
        ["void", "WB-EU-00000001", "--reason", "wrong buyer"],
    ],
)
def test_a_lake_that_is_none_is_named_and_not_made(tmp_path: Path, words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "--lake", str(tmp_path / "typo")])
    assert (result.exit_code, "there is no lake" in result.stderr) == (1, True)
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("words", [("--reason", ""), ("--reason", "  x "), ("--reason", "wrong buyer", "--by", " ")])
def test_a_void_needs_a_name_and_a_reason(billed: BilledLake, words: tuple[str, ...]) -> None:
    run(billed, "close", "--period", "2026-03", "--payer", "acme")
    run(billed, "issue", "--period", "2026-03", "--payer", "acme")
    result = run(billed, "void", "WB-EU-00000001", *words)
    assert (result.exit_code, "it needs" in result.stderr) == (1, True)
    assert len(billed.register.documents()) == 1


def test_of_two_sellers_with_one_number_the_one_is_voided_that_is_named(billed: BilledLake) -> None:
    run(billed, "close", "--period", "2026-03", "--payer", "acme")
    run(billed, "issue", "--period", "2026-03", "--payer", "acme")
    billed.publish(
        legal_entity(),
        tariff(price()),
        account("acme", device("van-1")),
        account("beta", device("van-2")),
        legal_entity(id="another", number_prefix="AN-"),
        account("gamma", device("van-3"), payer=payer(legal_entity="another")),
    )
    billed.hear("van-1", "van-2", "van-3")
    billed.use(used("van-3", 7000))
    run(billed, "close", "--period", "2026-03", "--payer", "gamma")
    run(billed, "issue", "--period", "2026-03", "--payer", "gamma")
    # no command gives a number twice
    billed.lake.open("documents").update(updates={"number": "'WB-EU-00000001'"}, predicate="payer = 'gamma'")
    doubtful = run(billed, "void", "WB-EU-00000001", "--reason", "wrong buyer")
    assert (doubtful.exit_code, "2 documents have the number WB-EU-00000001" in doubtful.stderr) == (1, True)


@pytest.mark.parametrize("ahead", [timedelta(days=3650), -timedelta(hours=1)])
def test_by_a_clock_that_is_not_the_stores_nothing_is_closed_issued_or_voided(
    billed: BilledLake, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    run(billed, "close", "--period", "2026-03")
    run(billed, "issue", "--period", "2026-03", "--payer", "acme")
    right = store_clock.store_time
    monkeypatch.setattr(store_clock, "store_time", lambda lake: right(lake) - ahead)
    for words in (
        ("close", "--period", "2026-03"),
        ("issue", "--period", "2026-03"),
        ("adjust", "--period", "2026-03"),
        ("void", "WB-EU-00000001", "--reason", "wrong buyer"),
    ):
        result = run(billed, *words)
        assert (result.exit_code, "this machine's clock says" in result.stderr) == (75, True), words
    assert len(billed.register.documents()) == 1


def test_a_period_in_which_nobody_pays_is_no_success(billed: BilledLake) -> None:
    result = run(billed, "close", "--period", "2020-01")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no account pays for any day of 2020-01; check the period" in result.stderr
    assert billed.lake.rows("closings").num_rows == 0


def test_what_is_used_and_billed_to_nobody_is_named_by_close(billed: BilledLake) -> None:
    assert "usage without an account" not in run(billed, "close", "--period", "2026-03").stderr
    billed.use(used("van-3", 4_000), used("van-4", 4_000, hour=HOUR - timedelta(days=60)))
    closed = run(billed, "close", "--period", "2026-03", "--json")
    assert "usage without an account in this period: fleet/van-3; `waybill" in closed.stderr
    assert len(values(closed)) == 2
    assert "usage without an account" not in run(billed, "close", "--period", "2026-03", "--payer", "acme").stderr


def test_close_says_until_when_publications_were_taken_over(billed: BilledLake) -> None:
    assert "contracts as of" not in run(billed, "close", "--period", "2026-03").stdout
    note_taken(billed.lake, HOUR)
    assert "contracts as of 2026-03-10T06:00:00Z" in run(billed, "close", "--period", "2026-03").stdout


def test_who_of_a_period_stands_where_is_asked_without_closing_again(billed: BilledLake) -> None:
    nobody = run(billed, "closings", "--period", "2026-03")
    assert (nobody.exit_code, "no payer was closed for 2026-03" in nobody.stderr) == (1, True)
    (first, _) = values(run(billed, "close", "--period", "2026-03", "--json"))
    billed.use(used("van-1", 99_000))
    (newest,) = values(run(billed, "close", "--period", "2026-03", "--payer", "acme", "--json"))
    # by an older snapshot again: what counts is the closing of the later one
    run(billed, "close", "--period", "2026-03", "--snapshot", first["snapshot"])
    found = {one["payer"]: one["closing"] for one in values(run(billed, "closings", "--period", "2026-03", "--json"))}
    assert found["acme"] == newest["closing"]
    assert found.keys() == {"acme", "beta"}
    shown = run(billed, "closings", "--period", "2026-03", "--payer", "acme").stdout
    assert newest["snapshot"] in shown
    assert "beta" not in shown
