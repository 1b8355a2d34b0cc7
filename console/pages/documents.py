"""A document as it is printed, each line taken apart into hours or steps, and each hour down to its fixes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

import structlog

from cloud_jobs.billing.documents import Document, DocumentContent, DocumentType, Form, files_of
from cloud_jobs.billing.documents.presentation import Presentation
from cloud_jobs.billing.rating import ChargeKind
from cloud_jobs.billing.register.documents_of import IssuedAgain, look_of
from cloud_jobs.billing.register.ledger import IssuedDocument
from cloud_jobs.billing.units import MEASURE_OF, Meter, place_text, quantity_text
from cloud_jobs.explain.explanation import ExplainedHour
from cloud_jobs.explain.issued_line import ExplainedLine
from cloud_jobs.explain.metered_again import MAX_HOURS
from cloud_jobs.explain.terminal import Check, checks_of, notes_of
from cloud_jobs.lake.coverage import TenantDevice
from console.asked import Part, part_asked
from console.bills import MAX_RECORDS, HourEvidence, is_place, is_within
from console.context import LOCAL, Console, Query, Viewer
from console.device_day import DeviceDay
from console.errors import BadQuery, ConsoleRefused, NotThere
from console.links import open_link
from console.page import Clock, Column, Download, Fact, Island, Kind, Page, Row, Table, address, device_day, moment_of
from console.pages.bills import ENGLISH, money
from console.pages.fences import ALWAYS
from console.pages.fleet import features_of
from console.pages.note_changes import changes_of
from console.reference import FenceVersion

_log = structlog.get_logger(__name__)
MAX_LINES: Final = 1_000
MAX_VEHICLES: Final = 500
RECORDS_A_PART: Final = 500
_ASKED: Final = ("tenant", "device", "again", "part")
AT_ONCE: Final = 48
"""A line with at most so many hours is computed again at once; a longer one when asked."""

FORMS: Final[Mapping[str, tuple[Form, str]]] = {
    "pdf": (Form.PDF, "application/pdf"),
    "xml": (Form.UBL, "application/xml"),
    "csv": (Form.CSV, "text/csv; charset=utf-8"),
    "json": (Form.JSON, "application/json"),
}
"""The files of a document by suffix, with their media types."""

LINES: Final = (
    Column("line", "Line", Kind.COUNT, link="href"),
    Column("item", "Item", link="href"),
    Column("vehicles", "Vehicles"),
    Column("quantity", "Quantity", Kind.MONEY),
    Column("price", "Price"),
    Column("net_amount", "Net amount", Kind.MONEY),
)
VEHICLES: Final = (
    Column("line", "Line", Kind.COUNT),
    Column("vehicle", "Vehicle", link="href"),
    Column("item", "Item"),
    Column("quantity", "Quantity", Kind.MONEY),
    Column("rows", "Clock hours", Kind.COUNT),
    Column("net_amount", "Net amount", Kind.MONEY),
)
VAT: Final = tuple(
    Column(key, key, Kind.MONEY if key != "category" else Kind.TEXT) for key in ("category", "rate", "taxable", "tax")
)
"""The document's language has their titles."""
CHECKS: Final = (
    Column("what", "What"),
    Column("charged", "Charged", Kind.MONEY),
    Column("found", "Recomputed", Kind.MONEY),
    Column("outcome", "Outcome", Kind.STATE),
)
STEPS: Final = (Column("step", "Step"), Column("figure", "Figure", Kind.MONEY))
HOURS: Final = (
    Column("hour", "Hour", Kind.TIME, link="href"),
    Column("quantity", "Quantity", Kind.MONEY),
    Column("records", "Records", Kind.COUNT),
    Column("outcome", "Recomputed from the records", Kind.STATE),
    Column("digest", "Digest of the row", Kind.CODE),
)
RECORDS: Final = (
    Column("seq", "Record", Kind.COUNT),
    Column("kind", "Kind"),
    Column("device_time", "Device time", Kind.TIME),
    Column("latitude", "Latitude", Kind.COORDINATE),
    Column("longitude", "Longitude", Kind.COORDINATE),
    Column("accuracy_m", "Accuracy", Kind.DISTANCE),
    Column("received_at", "Received", Kind.TIME),
    Column("epoch", "Epoch", Kind.CODE),
)
BORDERS: Final = (
    Column("zone", "Zone"),
    Column("name", "Name"),
    Column("from", "In force from"),
    Column("end", "Until"),
)
PUBLISHED: Final = (Column("published_by", "Published by"), Column("reason", "Reason"))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a document's pages are: below `base`. `bare`: without the other pages of the console."""

    number: str
    base: str
    bare: bool = False

    @classmethod
    def asked(cls, console: Console, query: Query) -> tuple[Query, Place]:
        """The place, and the query as it may be asked there.

        Whoever has a shared link sees what the document's payer sees of it. Raises NotThere for a link that opens
        nothing.
        """
        token = query.path.get("token")
        if token is None:
            return query, cls(query.path["number"], address("documents", query.path["number"]))
        try:
            link = open_link(console.settings.console, token, console.now())
        except ConsoleRefused as error:
            # strangers learn nothing of the settings
            _log.warning("no shared link can be opened", error=str(error))
            raise NotThere("shared links cannot be opened now") from None
        payer = console.bills.entry(LOCAL, link.number).key.payer
        viewer = Viewer(f"link {link.id}", accounts=frozenset({payer}))
        return replace(query, viewer=viewer), cls(link.number, address("shared", token), bare=True)

    def href(self, *parts: str, **asked: str | None) -> str:
        """The address of a part of the document."""
        return self.base + (address(*parts, **asked) if parts else address(**asked)[1:])

    def file(self, suffix: str) -> str:
        return f"{self.base}/document.{suffix}" if self.bare else f"{self.base}.{suffix}"


# The document.


def page(console: Console, query: Query) -> Page:
    """A document as it is printed; each line links to its hours."""
    query, place = Place.asked(console, query)
    entry = console.bills.entry(query.viewer, place.number)
    issued = console.bills.issued(place.number)
    document = issued.document
    # the paper is in the language of its PDF, the tables and facts of the console beside it are in English
    show = Presentation(document, look_of(console.lake.lake, document))
    lines = tuple(_lines(document, show, place, query.zone))
    return Page(
        path=place.base,
        title=show.heading,
        tables=(
            Table("lines", "Lines", LINES, lines, note=_cut(len(document["lines"]), MAX_LINES, "lines", place)),
            _vat(show),
            _vehicles(document, show, place, query),
            *([] if issued.before is None else [changes_of(issued, look_of(console.lake.lake, document, "en"))]),
        ),
        facts=_facts(document, entry),
        template="document.html",
        zone=_zone_of(document),
        extra={
            "bare": place.bare,
            "entry": entry,
            "payer_href": address("bills", entry.key.payer, zone=query.zone),
            "invoice_href": _preceding(document, query.zone),
            "language": show.language.name,
            "say": show.language.say,
            "columns": show.line_columns,
            "seller": show.party("seller"),
            "buyer": show.party("buyer"),
            "printed": show.facts,
            "payment": show.payment,
            "totals": show.totals,
            "remarks": show.remarks,
            "provenance": " ".join(show.provenance),
            "groups": [*_groups(show, lines)],
            "files": [(form.name, place.file(suffix)) for suffix, (form, _) in FORMS.items()],
        },
    )


def _zone_of(document: Document) -> str:
    """The payer's time zone, as the document was issued in."""
    return str(document["invoicing_period"]["time_zone"])


def _facts(document: Document, entry: IssuedDocument) -> tuple[Fact, ...]:
    found, currency = document["document_totals"], document["invoice_currency_code"]
    sums = {
        "net": "invoice_total_amount_without_vat",
        "tax": "invoice_total_vat_amount",
        "due": "amount_due_for_payment",
    }
    return (
        Fact("number", "Number", document["invoice_number"]),
        Fact("type", "Type", DocumentType(document["invoice_type_code"]).heading.lower()),
        Fact("payer", "Payer", entry.key.payer),
        Fact("period", "Period", entry.key.text),
        Fact("issue_date", "Issue date", document["invoice_issue_date"]),
        Fact("currency", "Currency", currency),
        *(Fact(key, key.capitalize(), f"{found[name]['text']} {currency}", Kind.MONEY) for key, name in sums.items()),
        Fact("is_void", "Void", entry.is_void, Kind.YES_NO),
        Fact("by", "By", entry.by),
        Fact("issued_at", "Issued", entry.issued_at, Kind.TIME),
        Fact("snapshot", "Snapshot", document["snapshot"], Kind.CODE),
        Fact("digest", "Digest", document["digest"], Kind.CODE),
    )


def _preceding(document: Document, zone: str) -> str:
    preceding = document["preceding_invoice"]
    return address("documents", preceding["preceding_invoice_reference"], zone=zone) if preceding else ""


def _lines(document: Document, show: Presentation, place: Place, zone: str) -> Iterator[Row]:
    """The lines in the order of the document, with the texts that it prints."""
    printed = (row for group in show.line_groups for row in group.rows)
    for line, texts in islice(zip(document["lines"], printed, strict=True), MAX_LINES):
        number = line["invoice_line_identifier"]
        yield {
            "id": str(number),
            "line": number,
            "item": texts[1],
            "vehicles": texts[2],
            "quantity": texts[3],
            "price": texts[4],
            "net_amount": texts[5],
            "net_minor": line["invoice_line_net_amount"]["minor"],
            **{name: line[name] for name in ("account", "region", "kind", "meter", "zone", "window")},
            "href": place.href("lines", str(number), zone=zone),
        }


def _groups(show: Presentation, lines: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The lines under the heading of their account and region, as printed."""
    at = 0
    for group in show.line_groups:
        rows = lines[at : at + len(group.rows)]
        at += len(group.rows)
        if rows:
            yield {"heading": group.heading, "rows": rows, "net_amount": group.net_amount}


def _vat(show: Presentation) -> Table:
    keys = [column.key for column in VAT]
    rows = [dict(zip(keys, row, strict=True)) for row in show.vat_rows]
    columns = (replace(column, title=title) for column, title in zip(VAT, show.vat_columns, strict=True))
    return Table("vat", show.language.say("total.vat"), tuple(columns), tuple(rows), is_list=False)


def _vehicles(document: Document, show: Presentation, place: Place, query: Query, only: int = 0) -> Table:
    """The annex: each vehicle's part of each line, or of one. What the viewer does not see has no link."""
    line_of = {line["invoice_line_identifier"]: line for line in document["lines"]}

    def row(entry: dict[str, Any]) -> Row:
        line = line_of[entry["line"]]
        _, item, quantity, _, _, amount = show.part(line, entry)
        device = {"tenant": entry["tenant"], "device": entry["device"]}
        is_open = place.bare or not entry["device"] or query.viewer.sees_tenant(entry["tenant"])
        name = show.vehicle(f"{entry['tenant']}/{entry['device']}") if entry["device"] else line["account_name"]
        return {
            "line": entry["line"],
            "vehicle": name,
            "item": item,
            "quantity": quantity,
            "rows": entry["metered"]["rows"] if entry["metered"] else 0,
            "net_amount": amount,
            "net_minor": entry["amount_minor"],
            **device,
            "href": place.href("lines", str(entry["line"]), **device, zone=query.zone) if is_open else "",
        }

    entries = [one for one in document["annex"] if only in (0, one["line"])]
    title = "Vehicles of this line" if only else "Each vehicle's part"
    note = "Choose a vehicle to see how its part arises. " if only else ""
    note = (note + _cut(len(entries), MAX_VEHICLES, "parts", place)).strip()
    shown = entries[:MAX_VEHICLES]
    return Table.of("vehicles", title, VEHICLES[bool(only) :], shown, row, note=note, empty="no vehicle has a part")


def _cut(count: int, shown: int, what: str, place: Place) -> str:
    return f"The first {shown:,} of {count:,} {what}; {place.file('csv')} has all." if count > shown else ""


def file(console: Console, query: Query) -> Download:
    """A document as a file: PDF, UBL, CSV or its canonical JSON."""
    query, place = Place.asked(console, query)
    found = FORMS.get(query.path["suffix"])
    if found is None:
        raise NotThere(f"a document has the files {', '.join(FORMS)}")
    form, media_type = found
    console.bills.entry(query.viewer, place.number)
    made = console.bills.issued(place.number).document
    [(name, content)] = files_of(made, [form], look_of(console.lake.lake, made)).items()
    # a PDF or UBL that cannot be made is an error before the first byte
    body = DocumentContent(made, form) if form in (Form.CSV, Form.JSON) else [bytes(content)]
    return Download(name, media_type, body)


# A line.


def line_page(console: Console, query: Query) -> Page:
    """A line: its devices, or what one charge is made of, held against it."""
    query, place = Place.asked(console, query)
    issued, line = _line_of(console, query, place)
    number = line["invoice_line_identifier"]
    show = Presentation(issued.document, look_of(console.lake.lake, issued.document, "en"))
    item = show.item(line, line["days"])
    path, title = place.href("lines", str(number)), f"Line {number} of {place.number}: {item}"
    extra, zone = {"bare": place.bare}, _zone_of(issued.document)
    facts = _line_facts(line, issued.document, place, query.zone)
    device = _device_asked(query, place, issued.document, number)
    if device is None:
        tables = (_vehicles(issued.document, show, place, query, number),)
        return Page(path, title, tables=tables, facts=facts, state=query.state(*_ASKED), zone=zone, extra=extra)
    asked = query.get("again") == "yes"
    hours = None if asked or _rows_of(issued.document, number, device) <= AT_ONCE else ()
    found = console.bills.explained(issued, number, device, hours)
    of_usage = (_hours(found, hours, place, query),) if line["kind"] == ChargeKind.USAGE.value else ()
    return Page(
        path,
        f"{title}, {device.tenant}/{device.device}" if device.device else title,
        tables=(_checks(found, hours), *of_usage, _steps(found)),
        facts=(*facts, *_vehicle_facts(issued.document, number, device), *_outcome_facts(found, hours, place, query)),
        warnings=tuple(_warnings(found)),
        state=query.state(*_ASKED),
        zone=zone,
        extra=extra,
    )


def _line_of(console: Console, query: Query, place: Place) -> tuple[IssuedAgain, Document]:
    console.bills.entry(query.viewer, place.number)
    issued = console.bills.issued(place.number)
    lines = issued.document["lines"]
    text = query.path["line"]
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= len(lines)):
        raise NotThere(f"document {place.number} has no line {text}; its lines are numbered 1 to {len(lines)}")
    return issued, lines[int(text) - 1]


def _rows_of(document: Document, line: int, device: TenantDevice) -> int:
    """The hours that a charge names."""
    of_line = (one for one in document["annex"] if one["line"] == line)
    metered = next(one["metered"] for one in of_line if TenantDevice(one["tenant"], one["device"]) == device)
    return metered["rows"] if metered else 0


def _device_asked(query: Query, place: Place, document: Document, line: int) -> TenantDevice | None:
    """The device of the query, or the only one of the line; None if there are several."""
    devices = [TenantDevice(one["tenant"], one["device"]) for one in document["annex"] if one["line"] == line]
    if query.get("device"):
        asked = TenantDevice(query.get("tenant"), query.get("device"))
        if asked not in devices:
            raise NotThere(f"this line does not charge {asked.tenant}/{asked.device}")
        devices = [asked]
    if len(devices) != 1:
        return None
    if not place.bare and devices[0].device:
        query.viewer.require_tenant(devices[0].tenant)
    return devices[0]


def _line_facts(line: Document, document: Document, place: Place, zone: str) -> tuple[Fact, ...]:
    currency, measured = document["invoice_currency_code"], line["quantity"]
    quantity = f"{measured['text']} {measured['unit']}" if measured else ""
    amount = f"{line['invoice_line_net_amount']['text']} {currency}"
    return (
        Fact("document", "Document", place.number, href=place.href(zone=zone)),
        Fact("line", "Line", line["invoice_line_identifier"], Kind.COUNT),
        Fact("account", "Account", line["account"]),
        Fact("region", "Region", line["region"] or "all regions"),
        *([Fact("quantity", "Quantity of the line", quantity, Kind.MONEY)] if quantity else []),
        Fact("price", "Price", ENGLISH.price(line["price"])),
        Fact("net_amount", "Net amount of the line", amount, Kind.MONEY),
    )


def _vehicle_facts(document: Document, line: int, device: TenantDevice) -> Iterator[Fact]:
    """The part that one vehicle has in a line, as the annex states it."""
    of_line, is_part = document["lines"][line - 1], (line, *device)
    for one in document["annex"] if device.device else ():
        if (one["line"], one["tenant"], one["device"]) == is_part:
            if of_line["quantity"]:
                meter = Meter(of_line["meter"])
                quantity = f"{quantity_text(meter, one['quantity_base'])} {MEASURE_OF[meter].unit}"
                yield Fact("vehicle_quantity", "Quantity of this vehicle", quantity, Kind.MONEY)
            amount = money(one["amount_minor"], document["invoice_currency_code"])
            yield Fact("vehicle_net_amount", "Net amount of this vehicle", amount, Kind.MONEY)


_OUTCOMES: Final = {True: "agrees", False: "differs", None: "unknown"}
NOT_COMPUTED: Final = "not computed"


def _outcome_of(hour: ExplainedHour, hours: Sequence[datetime] | None) -> str:
    """Whether the records give the row again. Unknown: they were erased, or another engine metered them."""
    is_asked = hours is None or hour.hour in hours
    return _OUTCOMES[hour.agrees] if is_asked else NOT_COMPUTED


def _is_complete(found: ExplainedLine, hours: Sequence[datetime] | None) -> bool:
    return hours is None or not found.explanation.hours


def _checks(found: ExplainedLine, hours: Sequence[datetime] | None) -> Table:
    def row(check: Check) -> Row:
        # hours that were not computed again are not unknown, but not asked for
        is_left_out = check.agrees is None and check.what.startswith("hours") and not _is_complete(found, hours)
        again = {"found": NOT_COMPUTED, "outcome": NOT_COMPUTED} if is_left_out else {}
        return check._asdict() | {"outcome": _OUTCOMES[check.agrees]} | again

    title = "Comparison with the charge" if found.posted is None else "Comparison with the amount owed"
    return Table.of("checks", title, CHECKS, checks_of(found), row, is_list=False)


def _outcome_facts(
    found: ExplainedLine, hours: Sequence[datetime] | None, place: Place, query: Query
) -> tuple[Fact, ...]:
    made, outcome = (
        found.explanation,
        Fact("outcome", "Recomputed", _OUTCOMES[found.explanation.agrees], Kind.STATE),
    )
    device = {"tenant": made.charge.key.tenant, "device": made.charge.key.device}
    if not _is_complete(found, hours):
        href = place.href("lines", str(found.line), **device, again="yes", zone=query.zone)
        words = f"{NOT_COMPUTED}: recompute {min(len(made.hours), MAX_HOURS):,} hours now"
        outcome = Fact("outcome", "Recomputed", words, href=href)
    of_device = [Fact(name, name.capitalize(), one) for name, one in device.items() if one]
    return (
        *of_device,
        outcome,
        Fact("snapshot", "Snapshot", found.snapshot.id, Kind.CODE),
    )


def _warnings(found: ExplainedLine) -> Iterator[str]:
    if found.explanation.agrees is False:
        yield "What is recomputed from the lake today differs from the charge. The tables show where."
    yield from notes_of(found)


def _hours(found: ExplainedLine, hours: Sequence[datetime] | None, place: Place, query: Query) -> Table:
    key = found.explanation.charge.key
    meter, shown = Meter(key.meter or ""), found.explanation.hours[:MAX_HOURS]

    def row(one: ExplainedHour) -> Row:
        device = {"tenant": key.tenant, "device": key.device}
        text = hour_text(one.hour)
        return {
            "id": text,
            "hour": one.hour,
            "href": place.href("lines", str(found.line), text, **device, zone=query.zone),
            "quantity": f"{quantity_text(meter, one.quantity)} {MEASURE_OF[meter].unit}",
            "quantity_base": one.quantity,
            "records": one.seq_ranges.count,
            "seq_ranges": one.seq_ranges.document(),
            "digest": one.digest,
            "again": one.again,
            "agrees": one.agrees,
            "outcome": _outcome_of(one, hours),
        }

    place_of = place_text(meter, key.zone)
    note = ", ".join(part for part in (f"Usage of the {meter.value}", place_of, key.window) if part) + "."
    if len(found.explanation.hours) > len(shown):
        note += f" The first {len(shown):,} of {len(found.explanation.hours):,} hours."
    return Table.of("hours", "Hours", HOURS, shown, row, note=note, empty="this charge has no hours")


def _steps(found: ExplainedLine) -> Table:
    rows = tuple({"step": step, "figure": figure} for step, figure in found.explanation.arithmetic)
    empty = "unknown: the account has too many devices"
    return Table("arithmetic", "How the amount is computed", STEPS, rows, empty=empty, is_list=False)


# An hour.


def hour_text(hour: datetime) -> str:
    """The hour as addresses and `waybill bill explain --hour` name it."""
    return hour.astimezone(UTC).strftime("%Y-%m-%dT%H")


def hour_page(console: Console, query: Query) -> Page:
    """An hour of a charge: its records, computed again, and its fixes on a map with the border in force."""
    query, place = Place.asked(console, query)
    issued, line = _line_of(console, query, place)
    number, hour = line["invoice_line_identifier"], _hour(query.path["hour"])
    device = _device_asked(query, place, issued.document, number)
    if device is None or line["kind"] != ChargeKind.USAGE.value:
        raise NotThere(f"line {number} of {place.number} has several vehicles or no hours; open the line")
    found = console.bills.explained(issued, number, device, [hour])
    charged = next((one for one in found.explanation.hours if one.hour == hour), None)
    if charged is None:
        raise NotThere(f"line {number} of {place.number} charges nothing in the hour {hour_text(hour)} of this vehicle")
    evidence = console.bills.evidence(query.viewer, found, hour, "waybill console: hour of a bill")
    path, zone = place.href("lines", str(number), hour_text(hour)), _zone_of(issued.document)
    clock = console.clock(query.viewer, query.zone, zone)
    part = part_asked(query, path, "part", each=RECORDS_A_PART, of=len(evidence.records))
    return Page(
        path,
        f"An hour of line {number} of {place.number}",
        tables=(_records(evidence, part), _borders(evidence.borders, query.viewer.sees_all, clock)),
        facts=(
            *_hour_facts(found, charged, place, query),
            *(() if place.bare else [_day_of(device, hour, query)]),
        ),
        island=Island("evidence", lambda: _island(console, query, found, charged, evidence)),
        warnings=tuple(_hour_warnings(found, charged)),
        state=query.state(*_ASKED),
        zone=zone,
        extra={"bare": place.bare},
    )


def _hour(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H").replace(tzinfo=UTC)
    except ValueError as error:
        raise BadQuery("hour", f"{text[:30]!r} is not an hour in UTC, as 2026-03-05T06") from error


def _hour_facts(found: ExplainedLine, hour: ExplainedHour, place: Place, query: Query) -> tuple[Fact, ...]:
    key = found.explanation.charge.key
    meter, device = Meter(key.meter or ""), TenantDevice(key.tenant, key.device)
    line = place.href("lines", str(found.line), **device._asdict(), zone=query.zone)
    quantity = f"{quantity_text(meter, hour.quantity)} {MEASURE_OF[meter].unit}"
    return (
        Fact("line", "Line", f"{found.line} of {found.number}", href=line),
        Fact("hour", "Hour from", hour.hour, Kind.TIME),
        Fact("device", "Device", f"{key.tenant}/{key.device}"),
        Fact("place", "Place", place_text(meter, key.zone) or "everywhere"),
        Fact("quantity", "Charged in this hour", quantity, Kind.MONEY),
        Fact("outcome", "Recomputed", _OUTCOMES[hour.agrees], Kind.STATE),
        Fact("digest", "Digest of the row", hour.digest, Kind.CODE),
        Fact("again", "Digest recomputed", hour.again or None, Kind.CODE),
    )


def _day_of(device: TenantDevice, hour: datetime, query: Query) -> Fact:
    return Fact("day", "The device", "its whole day", href=device_day(device, hour, query.zone))


def _hour_warnings(found: ExplainedLine, hour: ExplainedHour) -> Iterator[str]:
    if hour.agrees is False:
        yield "The records of this hour give another row of usage than the one that was charged."
    if hour.agrees is None:
        yield "It is unknown whether the records give the charged row: they are erased, or another engine metered them."
    yield from notes_of(found)


def _records(evidence: HourEvidence, part: Part) -> Table:
    said = [part.note] if part.note else []
    if evidence.count > MAX_RECORDS:
        said.append(f"The hour has {evidence.count:,}; the first {MAX_RECORDS:,} are read.")
    if evidence.withheld:
        said.append(f"{evidence.withheld:,} are not shown: the account did not pay for the vehicle at that time.")
    if missing := min(evidence.count, MAX_RECORDS) - len(evidence.records) - evidence.withheld:
        said.append(f"{missing:,} of the charged records are no longer in the lake.")
    return Table.of(
        "records",
        "Records",
        RECORDS,
        evidence.records[part.begin : part.end],
        lambda row: dict(row) | {"id": f"{row['epoch']}/{row['seq']}"},
        note=" ".join(said),
        empty="no record of this hour can be shown",
        links=part.links,
    )


def _borders(versions: tuple[FenceVersion, ...], sees_all: bool, clock: Clock) -> Table:
    def row(one: FenceVersion) -> Row:
        shown: Row = {"zone": one.id, "name": one.name, "begin": one.begin, "until": one.until}
        shown["from"] = ALWAYS if one.begin is None else clock.text(one.begin)
        shown["end"] = "open" if one.until is None else clock.text(one.until)
        return shown | ({"published_by": one.published_by, "reason": one.reason} if sees_all else {})

    note = "Borders in force in this hour, as the snapshot of the bill has them."
    columns = (*BORDERS, *(PUBLISHED if sees_all else ()))
    return Table.of("borders", "Borders", columns, versions, row, note=note, empty="no border is near")


def _island(
    console: Console, query: Query, found: ExplainedLine, hour: ExplainedHour, evidence: HourEvidence
) -> dict[str, Any]:
    """The fixes of the charge, and the rest of the device's hour beside them."""
    key = found.explanation.charge.key
    device = TenantDevice(key.tenant, key.device)
    near = console.settings.tracks.null_island_deg
    places = [row for row in evidence.records if is_place(row["longitude"], row["latitude"], null_island_deg=near)]
    of_hour = DeviceDay.read(console.lake, device, hour.hour, hour.hour + timedelta(hours=1))
    track = of_hour.track(console.settings.tracks)
    paid = console.bills.paid(query.viewer, key.account, device)
    pieces: list[list[tuple[float, float]]] = [[]]
    columns = (track.time_ms, track.longitude, track.latitude, track.tracks.linked)
    for ms, *place, is_linked in zip(*(column.tolist() for column in columns), strict=True):
        is_paid = is_within(moment_of(ms), paid)
        pieces += [] if is_linked and is_paid else [[]]
        pieces[-1] += [tuple(place)] if is_paid else []
    return {
        "fixes": [
            {
                "id": f"{row['epoch']}/{row['seq']}",
                "longitude": row["longitude"],
                "latitude": row["latitude"],
                "time": row["device_time"],
            }
            for row in places
        ],
        "track": [piece for piece in pieces if len(piece) > 1],
        "fences": features_of(evidence.borders),
        "zone": key.zone,
    }
