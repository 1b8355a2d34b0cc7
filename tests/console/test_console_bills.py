"""The bills' pages show what the commands print, and lead from a line of a bill to the fixes that made it."""

import asyncio
import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import httpx
import pytest
from typer.testing import CliRunner

from cloud_jobs.billing.register.operations import Clerk, void_invoice
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.commands import load_checked_settings
from cloud_jobs.explain.issued_line import ExplainedLine
from cloud_jobs.lake.erasures import Erasure, declare_erasure
from cloud_jobs.lake.tables import Lake
from console.app import make_app
from console.bills import BillReader
from console.context import Console, Viewer
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, price, tariff
from tests.cloud_jobs.billing.page_lake import NOW, PageLake
from tests.cloud_jobs.billing.register.billed_lake import BilledLake, used
from tests.cloud_jobs.publications import row_of
from tests.console.conftest import DAY, Served, Tab, close, console_of
from waybill.commands import SUBCOMMANDS, command_line

NUMBER = "WE-00000001"
RING = "eu-ring"


def command(*words: str) -> Any:
    result = CliRunner().invoke(command_line(SUBCOMMANDS, [*words], "Waybill."), [*words, "--json"])
    assert result.exit_code in (0, 3), result.output
    return json.loads(result.stdout)


class Site:
    """A console without a port; `viewer`: who looks."""

    def __init__(self, console: Console, viewer: Viewer | None = None) -> None:
        app = make_app(console)

        async def as_viewer(scope: Any, receive: Any, send: Any) -> None:
            await app(scope if viewer is None else {**scope, "viewer": viewer}, receive, send)

        self._transport = httpx.ASGITransport(app=as_viewer)

    def get(self, address: str, accept: str = "application/json") -> httpx.Response:
        async def asked() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://localhost") as client:
                return await client.get(address, headers={"accept": accept})

        # a browser of another test keeps an event loop in this thread
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: asyncio.run(asked())).result()

    def json(self, address: str) -> Any:
        answer = self.get(address)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def html(self, address: str) -> str:
        return self.get(address, "text/html").text

    def status(self, address: str) -> int:
        return self.get(address).status_code


def rows(page: Any, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page["tables"][table]["rows"]
    return found


def distance_in_ring(page: Any) -> dict[str, Any]:
    sought = "distance", RING, "acme"
    return next(row for row in rows(page, "lines") if (row["meter"], row["zone"], row["account"]) == sought)


def test_closings_and_documents_are_those_of_the_commands(billed: Served, billed_lake: Path) -> None:
    page, lake = billed.json("/bills"), str(billed_lake)
    [expected] = command("bill", "closings", "--lake", lake, "--period", DAY.isoformat())
    [closing] = rows(page, "closings")
    assert {name: closing[name] for name in ("outcome", "net_minor", "tax_minor", "payer", "reasons")} == {
        name: expected[name] for name in ("outcome", "net_minor", "tax_minor", "payer", "reasons")
    }
    assert (closing["snapshot"], closing["earlier"], closing["documents"]) == (expected["snapshot"], 1, 1)
    [document] = command("bill", "list", "--lake", lake)
    [shown] = rows(page, "documents")
    same = ("number", "payer", "net_minor", "tax_minor", "gross_minor", "issue_date", "by")
    assert {name: shown[name] for name in same} == {name: document[name] for name in same}
    assert shown["gross"] == "95.89 EUR"


def test_a_provisional_closing_says_what_makes_it_provisional(tmp_path: Path) -> None:
    made = PageLake(tmp_path)
    close(made.lake)
    site = Site(console_of(tmp_path / "lake"))
    [expected] = command("bill", "closings", "--lake", str(tmp_path / "lake"), "--period", DAY.isoformat())
    [row] = rows(site.json("/bills"), "closings")
    assert (row["outcome"], row["why"]) == ("provisional", "fleet/eu-0001: silent since 2026-01-05T08:05:34.742000Z")
    assert row["reasons"] == expected["reasons"]
    of_payer = site.json("/bills/acme")
    texts = [one["text"] for one in rows(of_payer, "reasons")]
    assert texts[0] == expected["reasons"][0]
    assert {*expected["notes"], *expected["doubtful"]} <= {*texts}
    assert site.json("/bills?outcome=final")["tables"]["closings"]["rows"] == []
    assert [site.status(f"/bills?{query}") for query in ("outcome=soon", "period=tomorrow")] == [400, 400]
    assert site.status("/bills/beta") == 404


def test_the_document_is_the_one_that_is_printed(billed: Served, billed_lake: Path) -> None:
    page = billed.json(f"/documents/{NUMBER}")
    document = command("bill", "show", NUMBER, "--lake", str(billed_lake))
    lines = rows(page, "lines")
    assert [(row["line"], row["net_minor"]) for row in lines] == [
        (one["invoice_line_identifier"], one["invoice_line_net_amount"]["minor"]) for one in document["lines"]
    ]
    facts = page["facts"]
    assert (facts["digest"], facts["snapshot"]) == (document["digest"], document["snapshot"])
    assert (facts["net"], facts["tax"], facts["due"]) == ("80.58 EUR", "15.31 EUR", "95.89 EUR")
    printed = billed.html(f"/documents/{NUMBER}")
    facts_of_print = ("Waybill Europe GmbH", "Acme Logistics South · eu", "DE02 1203 0000 0000 2020 51", "95,89 EUR")
    # as the PDF: the seller is in Germany
    texts = ("Rechnung WE-00000001", "Strecke, Zone eu-ring", "Zwischensumme", "USt-Kategorie", 'lang="de"', ">An<")
    assert [text for text in (*facts_of_print, *texts) if text not in printed] == []
    assert distance_in_ring(page)["item"] == "Strecke, Zone eu-ring"
    parts = [(one["line"], one["device"], one["net_minor"]) for one in rows(page, "vehicles")]
    assert parts == [(one["line"], one["device"], one["amount_minor"]) for one in document["annex"]]


def test_the_files_are_those_of_the_renderers(billed: Served) -> None:
    answers = {
        suffix: httpx.get(f"{billed.url}/documents/{NUMBER}.{suffix}") for suffix in ("pdf", "xml", "csv", "json")
    }
    assert answers["pdf"].content.startswith(b"%PDF-")
    assert ET.fromstring(answers["xml"].content).tag.endswith("}Invoice")  # noqa: S314 - our own
    assert answers["json"].json()["invoice_number"] == NUMBER
    assert f"\r\n{NUMBER}," in answers["csv"].text
    assert answers["pdf"].headers["content-disposition"] == f'attachment; filename="{NUMBER}.pdf"'
    assert httpx.get(f"{billed.url}/documents/{NUMBER}.exe").status_code == 404
    assert httpx.get(f"{billed.url}/documents/WE-00000009.pdf").status_code == 404


def test_a_line_opens_to_hours_records_and_the_border_in_force(billed: Served, billed_lake: Path) -> None:
    lines = billed.json(f"/documents/{NUMBER}")
    line = distance_in_ring(lines)
    page, number = billed.json(line["href"]), str(line["line"])
    expected = command("bill", "explain", NUMBER, number, "--lake", str(billed_lake))
    shown = rows(page, "hours")
    same = ("quantity_base", "digest", "again", "agrees", "seq_ranges")
    assert [{name: one[name] for name in same} for one in shown] == [
        {name: one[name] for name in same} for one in expected["hours"]
    ]
    assert {one["outcome"] for one in shown} == {one["outcome"] for one in rows(page, "checks")} == {"agrees"}
    assert rows(page, "arithmetic") == expected["arithmetic"]
    hour = billed.json(shown[0]["href"])
    words = ("--hour", shown[0]["id"], "--limit", "5000")
    explained = command("bill", "explain", NUMBER, number, "--lake", str(billed_lake), *words)
    records = rows(hour, "records")
    assert [(one["epoch"], one["seq"]) for one in records] == [
        (one["epoch"], one["seq"]) for one in explained["records"][: len(records)]
    ]
    assert len(records) == min(500, explained["records_in_all"])
    assert [one["zone"] for one in rows(hour, "borders")] == [RING]
    assert 'href="/device/fleet/eu-0001?at=2026-01-05T' in billed.html(shown[0]["href"])
    island = hour["island"]
    assert [one["properties"]["id"] for one in island["fences"]["features"]] == [RING]
    assert len(island["fixes"]) > 0 < len(island["track"])
    log = next(billed_lake.parent.glob("lake-access-*.jsonl")).read_text(encoding="utf-8").splitlines()
    entries = [json.loads(one) for one in log]
    assert any(one.get("document") == NUMBER and "console" in one["command"] and "hour" in one for one in entries)


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/documents/WE-00000009", 404),
        (f"/documents/{NUMBER}/lines/99", 404),
        (f"/documents/{NUMBER}/lines/x", 404),
        (f"/documents/{NUMBER}/lines/1/2026-01-05T03", 404),
        (f"/documents/{NUMBER}/lines/1/morning", 400),
        (f"/documents/{NUMBER}/lines/1?tenant=fleet&device=other", 404),
    ],
)
def test_what_is_not_there_is_said(billed: Served, address: str, status: int) -> None:
    assert httpx.get(billed.url + address).status_code == status


class ChangedReader(BillReader):
    """Explains as if the records gave another row than the charged one."""

    def explained(self, *asked: Any) -> ExplainedLine:
        found = super().explained(*asked)
        hours = tuple(replace(one, again="0" * 16) for one in found.explanation.hours)
        return replace(found, explanation=replace(found.explanation, hours=hours))


def test_a_difference_and_an_erasure_are_said(billed: Served, billed_lake: Path, tmp_path: Path) -> None:
    line = distance_in_ring(billed.json(f"/documents/{NUMBER}"))["href"]
    changed = console_of(billed_lake)
    changed.bills = ChangedReader(changed)
    page = Site(changed).json(line)
    assert {one["outcome"] for one in rows(page, "hours")} == {"differs"} == {page["facts"]["outcome"]}
    assert "differs" in page["warnings"][0]
    shutil.copytree(billed_lake, tmp_path / "lake")
    until = datetime(2026, 1, 6, tzinfo=UTC)
    device = rows(page, "hours")[0]["href"].split("device=")[1]
    declare_erasure(Lake(tmp_path / "lake"), Erasure("fleet", device, until), until)
    page = Site(console_of(tmp_path / "lake")).json(line)
    assert {one["outcome"] for one in rows(page, "hours")} == {"unknown"} == {page["facts"]["outcome"]}
    assert "are erased" in page["warnings"][0]


def test_a_viewer_sees_the_bills_of_his_payer_only(billed: Served, billed_lake: Path) -> None:
    document = billed.json(f"/documents/{NUMBER}")
    hour = rows(billed.json(distance_in_ring(document)["href"]), "hours")[0]["href"]
    addresses = (
        *(f"/documents/{NUMBER}", f"/documents/{NUMBER}.pdf", "/bills/acme", hour),
        "/reconcile?payer=acme&period=2026-01-05",
    )
    other = Site(console_of(billed_lake), Viewer("other", accounts=frozenset({"beta"})))
    assert [other.status(one) for one in addresses] == [404] * 5
    assert "acme" not in other.get("/bills").text
    stranger = Site(console_of(billed_lake), Viewer("stranger", tenants=frozenset({"kaze"})))
    assert [stranger.status(one) for one in addresses] == [404] * 5
    mine = Site(console_of(billed_lake), Viewer("acme", accounts=frozenset({"acme"})))
    assert [mine.status(one) for one in addresses] == [200, 200, 200, 200, 404]
    tenant = Site(console_of(billed_lake), Viewer("fleet", tenants=frozenset({"fleet"})))
    assert [tenant.status(one) for one in addresses[:4]] == [200] * 4


def test_no_position_is_shown_that_the_account_did_not_pay_for(
    billed: Served, billed_lake: Path, tmp_path: Path
) -> None:
    document = billed.json(f"/documents/{NUMBER}")
    hour = rows(billed.json(distance_in_ring(document)["href"]), "hours")[0]["href"]
    times = [one["device_time"] for one in rows(billed.json(hour), "records")]
    cut = datetime(2026, 1, 5, 7, 30, tzinfo=UTC)
    # a corrected contract: the account has the vehicle only until the middle of the hour
    shutil.copytree(billed_lake, tmp_path / "lake")
    lake = Lake(tmp_path / "lake")
    published = lake.rows("reference", where=[("id", "=", "acme")]).to_pylist()
    body = json.loads(published[0]["body"])
    body["devices"][0]["end"] = cut.isoformat()
    lake.append("reference", [row_of("account", "acme", json.dumps(body), 100)])
    page = Site(console_of(tmp_path / "lake"), Viewer("acme", accounts=frozenset({"acme"}))).json(hour)
    shown = [one["device_time"] for one in rows(page, "records")]
    assert 0 < len(shown) < len(times)
    assert max(map(datetime.fromisoformat, shown)) < cut
    assert "are not shown" in page["tables"]["records"]["note"]
    assert len(page["island"]["fixes"]) <= len(shown)
    assert len(rows(Site(console_of(tmp_path / "lake")).json(hour), "records")) == len(times)


def test_reconcile_is_what_the_command_finds(billed: Served, billed_lake: Path) -> None:
    assert f'<option value="{DAY}"' in billed.html("/reconcile"), "closed periods can be chosen"
    page = billed.json(f"/reconcile?period={DAY}")
    words = ("--lake", str(billed_lake), "--period", DAY.isoformat(), "--snapshot", page["facts"]["snapshot"])
    expected = command("reconcile", *words)
    found = [
        (one["station"], one["name"], one["place"], one["counts"], one["outcome"]) for one in rows(page, "comparisons")
    ]
    assert found == [
        (
            *(one[name] for name in ("station", "name", "place")),
            {name: one[name] for name in ("expected", "found", "difference")},
            one["outcome"],
        )
        for one in expected["comparisons"]
    ]
    assert page["facts"]["outcome"] == expected["outcome"]
    html = billed.html(f"/reconcile?period={DAY}")
    assert html.count('<li class="station') == 6
    assert httpx.get(f"{billed.url}/reconcile?period=2026-02").status_code == 400


def test_the_map_draws_the_border_and_the_fixes_of_an_hour(billed: Served, tab_of_bills: Tab) -> None:
    tab = tab_of_bills
    tab.open(f"{billed.url}/documents/{NUMBER}")
    tab.page.click(f"text=Strecke, Zone {RING}")
    tab.page.click("#hours a")
    tab.wait_for("const e = document.querySelector('[data-island]'); return !!e && e.dataset.drawn === 'true'")
    drawn = tab.page.evaluate(
        "() => { const m = document.querySelector('[data-island]').waybillMap; const count = (layer) =>"
        " new Set(m.queryRenderedFeatures({layers: [layer]}).map(f => f.properties.id)).size;"
        " return [count('fence-line'), count('fixes')] }"
    )
    assert drawn[0] == 1
    assert drawn[1] > 10


@pytest.fixture
def tab_of_bills(browser: Any, billed: Served) -> Iterator[Tab]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    made = Tab(page, billed.url)
    yield made
    page.close()
    assert made.faults == []


class Links(NamedTuple):
    """A console whose settings have a key for links, and the command that makes them."""

    console: Console
    settings: Path

    def make(self, *words: str) -> Any:
        return command("console-link", *words, "--config", str(self.settings))

    def status(self, link: str, *, days: int = 0) -> int:
        late = Console(self.console.settings, now=lambda: datetime.now(UTC) + timedelta(days=days))
        return Site(late).status(urlsplit(link).path)


@pytest.fixture
def links(billed_lake: Path, tmp_path: Path) -> Links:
    key = tmp_path / "link.key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    settings = tmp_path / "cloud.toml"
    settings.write_text(
        f'lake = "{billed_lake}"\ncheckpoints = "c"\n[[clusters]]\nname = "hq"\nservice_url = "pulsar://127.0.0.1:1"\n'
        'admin_url = "http://127.0.0.1:1"\n[reference]\nunsigned = true\n'
        '[console]\nlive = false\nlink_key = "link.key"\nrevoked_links = "revoked"\n'
    )
    return Links(Console(load_checked_settings(settings)), settings)


def test_a_link_shows_one_document_with_its_evidence_and_nothing_else(links: Links, billed: Served) -> None:
    link = urlsplit(links.make(NUMBER, "--days", "30")["link"]).path
    site = Site(links.console)
    page = site.json(link)
    assert page["facts"] == billed.json(f"/documents/{NUMBER}")["facts"]
    line = site.json(distance_in_ring(page)["href"])
    hour = site.json(rows(line, "hours")[0]["href"])
    assert len(rows(hour, "records")) > 0 < len(hour["island"]["fixes"])
    assert site.get(f"{link}/document.pdf").content.startswith(b"%PDF-")
    # every link of the pages stays below the shared one
    for address in (link, distance_in_ring(page)["href"], rows(line, "hours")[0]["href"]):
        found = re.findall(r'href="(/[^"]*)"', site.html(address))
        assert [one for one in found if not one.startswith((link, "/static/", "?"))] == []


def test_bills_are_in_the_zone_of_their_payer_and_other_pages_name_the_mix(
    links: Links, billed_lake: Path, tmp_path: Path
) -> None:
    shutil.copytree(billed_lake, tmp_path / "lake")
    far = account("far", payer=payer(time_zone="Asia/Tokyo"))
    Lake(tmp_path / "lake").append("reference", [row_of("account", "far", json.dumps(far), 99)])
    console = console_of(tmp_path / "lake", link_key=links.settings.parent / "link.key")
    site, shared = Site(console), urlsplit(links.make(NUMBER)["link"]).path
    for document in (f"/documents/{NUMBER}", shared):
        line = distance_in_ring(site.json(document))["href"]
        hour = rows(site.json(line), "hours")[0]["href"]
        for address in (document, line, hour):
            assert "Times in Europe/Berlin<" in site.html(address)
            assert ("Tokyo" in site.html(address)) is (document != shared), "of other accounts a link shows nothing"
        assert "2026-01-05 08:00:00 +01:00" in site.html(hour)
        assert "2026-01-05 07:00:00 UTC" in site.html(f"{hour}&zone=UTC")
    for address, zone in (
        ("/device/fleet/eu-0001", "Europe/Berlin<"),
        ("/bills/far?period=2026", "Asia/Tokyo<"),
        ("/bills", "UTC: accounts have 2 zones<"),
        ("/bills?zone=Asia/Tokyo", "Asia/Tokyo<"),
    ):
        assert f"Times in {zone}" in site.html(address)
    assert "Times in Europe/Berlin<" in Site(console, Viewer("acme", accounts=frozenset({"acme"}))).html("/bills")


def test_a_link_that_is_changed_expired_or_revoked_opens_nothing(links: Links) -> None:
    made = links.make(NUMBER, "--days", "2")
    link = made["link"]
    assert [links.status(link, days=days) for days in (0, 1, 3)] == [200, 200, 404]
    text, _, signature = link.rpartition(".")
    for changed in (
        f"{text[:-1]}A.{signature}",
        f"{text}.{signature[::-1]}",
        f"{text}",
        f"{text}.é",
        f"{text}.{'A' * 43}",
    ):
        assert links.status(changed) == 404
    assert links.make("--revoke", made["id"]) == {"revoked": made["id"]}
    assert links.status(link) == 404
    assert links.status(links.make(NUMBER)["link"]) == 200
    (links.settings.parent / "link.key").write_text("fedcba9876543210" * 4)
    assert links.status(link) == 404
    (links.settings.parent / "link.key").chmod(0o644)
    assert links.status(link) == 404


def test_a_note_that_takes_an_invoice_back_is_shown_with_what_it_takes_back(billed_lake: Path, tmp_path: Path) -> None:
    shutil.copytree(billed_lake, tmp_path / "lake")
    clerk = Clerk(by="A. Clerk", now=NOW, attempt="two")
    note = void_invoice(Register(Lake(tmp_path / "lake")), NUMBER, "wrong buyer", clerk=clerk)
    site = Site(console_of(tmp_path / "lake"))
    page = site.json(f"/documents/{note.number}")
    assert (page["facts"]["type"], page["facts"]["is_void"], page["facts"]["due"]) == ("credit note", True, "95.89 EUR")
    assert f'href="/documents/{NUMBER}"' in site.html(f"/documents/{note.number}")
    changes = rows(page, "changes")
    assert (
        sum(one["difference_minor"] for one in changes)
        == -8058
        == rows(site.json("/bills"), "documents")[0]["net_minor"]
    )
    assert {one["quantity_now"] for one in changes} == {""} != {one["quantity_before"] for one in changes}
    line = site.json(distance_in_ring(page)["href"])
    assert line["facts"]["outcome"] == "agrees"
    assert "takes back" in line["warnings"][0]
    [shown, _] = rows(site.json("/bills?payer=acme&period=2026-01"), "documents")
    assert (shown["type"], shown["invoice"], shown["gross"]) == ("credit note (void)", NUMBER, "-95.89 EUR")


def test_a_line_of_several_vehicles_lists_them_and_a_minimum_shows_its_steps(tmp_path: Path) -> None:
    made = BilledLake.create(tmp_path / "lake", "van-1", "van-2")
    devices = (device("van-1"), device("van-2"))
    made.publish(legal_entity(), tariff(price(), minimum_amount="900.00"), account("acme", *devices))
    made.use(used("van-1", 10_000), used("van-2", 4_000))
    made.close("one")
    [issued] = made.issue("one").documents
    site = Site(console_of(tmp_path / "lake"))
    lines = rows(site.json(f"/documents/{issued.number}"), "lines")
    of_usage, fee = (next(one for one in lines if (one["kind"] == "usage") is kind) for kind in (True, False))
    vehicles = rows(site.json(of_usage["href"]), "vehicles")
    assert [one["vehicle"] for one in vehicles] == ["fleet/van-1", "fleet/van-2"]
    assert sum(one["net_minor"] for one in vehicles) == of_usage["net_minor"]
    assert all("device=van-" in one["href"] for one in vehicles)
    found = site.json(fee["href"])
    assert rows(found, "arithmetic")[-1] == {"step": "missing", "figure": "893.70 EUR"}
    assert (found["facts"]["outcome"], "hours" in found["tables"]) == ("agrees", False)
    # nobody computed this usage from records: that is said, and is not an agreement
    assert "cloud-jobs usage" in site.get(vehicles[0]["href"]).json()["title"]
