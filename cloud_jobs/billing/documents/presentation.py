"""The texts of a document for people, in order and in one language; PDF and terminal lay them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Any, Final

from cloud_jobs.billing.billing_period import zone_of
from cloud_jobs.billing.documents.canonical import Document, Entry
from cloud_jobs.billing.documents.document import (
    CREDITED,
    NOTHING_KNOWN,
    NOTHING_USED,
    PREVIEW_MARK,
    DocumentType,
)
from cloud_jobs.billing.documents.look import PLAIN, Language, Look, applied_price, charged_steps
from cloud_jobs.billing.rating.terms import name_of
from cloud_jobs.billing.units import MEASURE_OF, Meter, MeterZones, amount_text, exponent, quantity_text

MAX_INCOMPLETE: Final = 20
"""The most incomplete devices of a preview that are shown; JSON and CSV have more."""
MAX_DAYS: Final = 7
"""The most days of a daily cap that are named."""
MAX_ANNEX_ENTRIES: Final = 2000
"""About the most annex entries that are shown, those of whole vehicles; the CSV has all."""
_SUBTITLES: Final = {NOTHING_USED: "line.nothing_used", NOTHING_KNOWN: "line.nothing_known"}

Fact = tuple[str, str]
"""A label and its text."""
Row = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineGroup:
    """The lines of one account and region, in `line_columns`, and their sum."""

    heading: str
    rows: tuple[Row, ...]
    net_amount: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VehiclePart:
    """A vehicle's parts of the lines, in `annex_columns`, and their sum; of an account, what no vehicle caused."""

    name: str
    rows: tuple[Row, ...]
    net_amount: str


class Presentation:
    """A document in a look. Amounts are exact, quantities of lines are rounded for people; the annex has exact ones."""

    def __init__(self, document: Document, look: Look = PLAIN) -> None:
        self._document = document
        self._look = look
        self.language: Final[Language] = look.of_seller_in(document["seller"]["seller_postal_address"]["country_code"])
        self._currency: Final[str] = document["invoice_currency_code"]
        self._say: Final = self.language.say

    # Head.

    @property
    def heading(self) -> str:
        if preview := self._document.get("preview"):
            return self._say("type.preview_of", mark=self.watermark, moment=preview["as_of"])
        kind = self._say(f"type.{self._document['invoice_type_code']}")
        number = self._document["invoice_number"]
        return self._say("type.number", type=kind, number=number) if number else self._say("type.draft", type=kind)

    @property
    def draft_note(self) -> str:
        """A draft has no number, so nobody may ask for its amount; "" for other documents."""
        is_draft = self._document["invoice_number"] is None and "preview" not in self._document
        return self._say("type.no_demand") if is_draft else ""

    @property
    def watermark(self) -> str:
        """The text across each page of a preview; "" for other documents."""
        preview = self._document.get("preview")
        if preview is None:
            return ""
        mark = str(preview["mark"])
        return self._say("type.preview") if mark == PREVIEW_MARK else mark

    @property
    def incomplete_columns(self) -> Row:
        return self._say("incomplete.vehicle"), self._say("incomplete.unknown")

    @property
    def incomplete_rows(self) -> list[Row]:
        """The incomplete vehicles of a preview, and why its sum may change otherwise."""
        if "preview" not in self._document:
            return []
        found = self._document["preview"]["incomplete"]
        rows: list[Row] = [(one["device"], "; ".join(one["reasons"])) for one in found[:MAX_INCOMPLETE]]
        rows += [("", reason) for reason in self._document["preview"]["reasons"]]
        more = len(found) - MAX_INCOMPLETE
        said = self._say("incomplete.more", count=self.language.number(str(more)))
        return [*rows, *([("", said)] if more > 0 else [])]

    def party(self, role: str) -> list[str]:
        """The lines of the address of the `seller` or the `buyer`; the first is its name."""
        facts, address = self._document[role], self._document[role][f"{role}_postal_address"]
        city = " ".join(part for part in (address["post_code"], address["city"]) if part)
        found = [facts[f"{role}_name"], address["line"], f"{city}, {address['country_code']}"]
        if facts[f"{role}_vat_identifier"]:
            found.append(self._say("party.vat_id", id=facts[f"{role}_vat_identifier"]))
        if facts.get(f"{role}_tax_registration_identifier"):
            found.append(self._say("party.tax_id", id=facts[f"{role}_tax_registration_identifier"]))
        return [*found, *(text for text in (facts.get("seller_contact") or {}).values() if text)]

    @property
    def facts(self) -> list[Fact]:
        document, day = self._document, self.language.day
        period, preceding = document["invoicing_period"], document["preceding_invoice"] or {}
        start, end = period["invoicing_period_start_date"], period["invoicing_period_end_date"]
        return self._facts(
            issue_date=day(document["invoice_issue_date"]),
            due_date=day(document["payment_due_date"]),
            period=self._say("fact.days", first=day(start), last=day(end), zone=period["time_zone"]),
            customer=document["buyer"]["buyer_identifier"],
            reference=" · ".join(
                text for text in (document["buyer_reference"], document["purchase_order_reference"]) if text
            ),
            corrects=preceding.get("preceding_invoice_reference"),
            corrects_of=day(preceding.get("preceding_invoice_issue_date")),
            reason=document["invoice_note"],
        )

    def _facts(self, part: str = "fact", **values: str | None) -> list[Fact]:
        return [(self._say(f"{part}.{name}"), text) for name, text in values.items() if text]

    @property
    def payment(self) -> list[Fact]:
        """How to pay; of a credit, that nothing is to be paid."""
        instructions, terms = self._document["payment_instructions"], self._document["payment_terms"]
        if "preview" in self._document:
            return [(self._say("payment.title"), self._say("payment.none"))]
        if terms:
            return [(self._say("payment.title"), self._say("payment.credited") if terms == CREDITED else terms)]
        return self._facts(
            "payment",
            iban=_in_fours(instructions["payment_account_identifier"] or ""),
            bic=instructions["payment_service_provider_identifier"],
            debited=_in_fours(instructions["debited_account_identifier"] or ""),
            mandate=instructions["mandate_reference_identifier"],
            creditor=instructions["bank_assigned_creditor_identifier"],
            payable_to=self._document["seller"]["seller_name"],
            remittance=instructions["remittance_information"],
        )

    # Sums.

    def amount(self, text: str) -> str:
        return f"{self.language.number(text)} {self._currency}"

    @property
    def totals(self) -> list[Fact]:
        """The sums; the last one is the amount due or credited."""
        found = self._document["document_totals"]
        last, sum_to_pay = "total.due", found["amount_due_for_payment"]["text"]
        if "preview" in self._document:
            last = "total.so_far"
        elif self._document["payment_terms"] == CREDITED:
            last, sum_to_pay = "total.credited", sum_to_pay.removeprefix("-")
        accounting = self._document["vat_accounting"]
        again = []
        if accounting:
            currency, rate = accounting["vat_accounting_currency_code"], accounting["exchange_rate"]
            label = self._say("total.vat_again", rate=self.language.number(rate))
            text = accounting["invoice_total_vat_amount_in_accounting_currency"]["text"]
            again = [(label, f"{self.language.number(text)} {currency}")]
        rounded = [(self._say("total.rounding"), self.amount(found["rounding_amount"]["text"]))]
        return [
            (self._say("total.net"), self.amount(found["invoice_total_amount_without_vat"]["text"])),
            (self._say("total.vat"), self.amount(found["invoice_total_vat_amount"]["text"])),
            *again,
            *(rounded if found["rounding_amount"]["minor"] else []),
            (self._say(last), self.amount(sum_to_pay)),
        ]

    @property
    def due(self) -> Fact:
        """The last of the totals, with the day until which it is to be paid."""
        label, text = self.totals[-1]
        day = self.language.day(self._document["payment_due_date"])
        return self._say("total.due_by", date=day) if day else label, text

    @property
    def vat_columns(self) -> Row:
        return tuple(self._say(f"vat.{name}") for name in ("category", "rate", "taxable", "tax"))

    @property
    def vat_rows(self) -> list[Row]:
        return [
            (
                self._category(vat),
                self._percent(vat["vat_category_rate"]),
                self.language.number(vat["vat_category_taxable_amount"]["text"]),
                self.language.number(vat["vat_category_tax_amount"]["text"]),
            )
            for vat in self._document["vat_breakdown"]
        ]

    def _category(self, vat: Document) -> str:
        code, reason = vat["vat_category_code"], vat["vat_exemption_reason_text"]
        named = self._say("place.named", name=self._say(f"vat.{code}"), id=code)
        return f"{named} – {reason}" if reason else named

    def _percent(self, rate: str | None) -> str:
        return self._say("vat.none") if rate is None else self._say("vat.percent", rate=self.language.number(rate))

    # Lines.

    @property
    def line_columns(self) -> Row:
        return tuple(self._say(f"line.{one}") for one in ("number", "item", "vehicles", "quantity", "price", "amount"))

    @property
    def line_groups(self) -> Iterator[LineGroup]:
        for subtotal in self._document["subtotals"]:
            lines = self._document["lines"][subtotal["first_line"] - 1 : subtotal["last_line"]]
            yield LineGroup(
                heading=f"{subtotal['account_name']} · {subtotal['region'] or self._say('line.all_regions')}",
                rows=tuple(self._line(line) for line in lines),
                net_amount=self.language.number(subtotal["net_amount"]["text"]),
            )

    def _line(self, line: Document) -> Row:
        quantity, measured = line["quantity"], ""
        if quantity:
            measured = self.language.quantity(quantity["text"], quantity["unit"])
            steps = charged_steps(
                line["price"],
                line["invoice_line_net_amount"]["minor"],
                currency=self._currency,
                digits=exponent(self._currency),
            )
            if steps:
                # what a customer can multiply
                number, (_, facts) = steps
                each = f" × {self.language.measure(facts['quantity'], facts['unit'])}" if "quantity" in facts else ""
                measured = f"{self.language.number(str(number))}{each} ({measured})"
            elif quantity["free_base"]:
                free = self.language.quantity(quantity["free_text"], quantity["unit"])
                measured = f"{measured} {self._say('line.free', quantity=free)}"
        return (
            str(line["invoice_line_identifier"]),
            self.item(line, line["days"]),
            str(line["vehicles"] or ""),
            measured,
            self._price(line),
            self.language.number(line["invoice_line_net_amount"]["text"]),
        )

    def item(self, line: Document, days: Sequence[str] = ()) -> str:
        """What a line is for, with the name of its fence beside the id. `days`: on which a daily cap took off."""
        if key := _SUBTITLES.get(line["item_name"]):
            return self._say(key)
        known, meter = self.language.known, line["meter"]
        if line["kind"] == "fee":
            # the seller's words
            return str(line["item_name"])
        if line["kind"] != "usage":
            of = name_of(line["price"]) or (known("meter", meter) if meter else "")
            named = ": ".join(filter(None, (known("kind", line["kind"]), of)))
            more = ", …" if len(days) > MAX_DAYS else ""
            listed = ", ".join(filter(None, map(self.language.day, days[:MAX_DAYS]))) + more
            count = self.language.measure(str(len(days)), "day")
            return self._say("line.days", item=named, count=count, days=listed) if days else named
        window = self._say("place.window", name=self.language.window(line["window"])) if line["window"] else ""
        return ", ".join(
            one
            for one in (name_of(line["price"]) or known("meter", meter), self._place(meter, line["zone"]), window)
            if one
        )

    def _place(self, meter: str, zone: str) -> str:
        zones = MEASURE_OF[Meter(meter)].zones
        if zones is MeterZones.NONE:
            return ""
        if not zone:
            return self._say("place.outside")
        kind = "place.gate" if zones is MeterZones.GATES else "place.zone"
        return self._say(kind, name=self._named(zone, self._look.fences.get(zone)))

    def _named(self, of_id: str, name: str | None) -> str:
        return self._say("place.named", name=name, id=of_id) if name and name != of_id else of_id

    def _price(self, line: Document) -> str:
        said = self._agreed_price(line)
        if gross := line.get("gross_amount"):
            said += f"\n= {self.amount(gross['text'])} {self._say('price.vat_included')}"
        if len(self._document["vat_breakdown"]) == 1:
            return said
        code, rate = line["invoiced_item_vat_category_code"], self._percent(line["invoiced_item_vat_rate"])
        tax = f"{self._say('total.vat')} {rate} ({code})"
        return f"{said}\n{tax}" if said else tax

    def _agreed_price(self, line: Document) -> str:
        if not (quantity := line["quantity"]):
            return self.language.price(line["price"], meter=line["meter"], cycle=self._cycle)
        applied = applied_price(
            line["price"],
            line["meter"],
            quantity["base"] - quantity["free_base"],
            line["invoice_line_net_amount"]["minor"],
            currency=self._currency,
            digits=exponent(self._currency),
            vehicles=line["vehicles"],
        )
        return self.language.price(line["price"], applied, meter=line["meter"])

    @cached_property
    def _cycle(self) -> str:
        """What the document's period is, from any day on."""
        days = (self._document["invoicing_period"][f"invoicing_period_{of}_date"] for of in ("start", "end"))
        first, last = map(date.fromisoformat, days)
        end = last + timedelta(days=1)
        months = (end.year - first.year) * 12 + end.month - first.month
        return {1: "month", 3: "quarter", 12: "year"}.get(months, "period") if first.day == end.day else "period"

    # Annex.

    @property
    def annex_columns(self) -> Row:
        names = ("line.number", "line.item", "line.quantity", "annex.free", "annex.records", "line.amount")
        return tuple(map(self._say, names))

    @cached_property
    def _annex_vehicles(self) -> tuple[set[tuple[str, str]], list[tuple[str, str]]]:
        """The vehicles that there are, and in order those of them that are shown, each whole."""
        counts: Counter[tuple[str, str]] = Counter()
        for entry in self._document["annex"]:
            counts[entry["tenant"], entry["device"]] += 1 + (entry.get("parts") or "").count("/") // 2
        rows, shown = 0, list[tuple[str, str]]()
        # what no vehicle caused comes last
        for one in sorted(counts, key=lambda one: (not one[1], one)):
            rows += counts[one]
            if shown and rows > MAX_ANNEX_ENTRIES:
                break
            shown.append(one)
        return {*counts}, shown

    @property
    def annex(self) -> Iterator[VehiclePart]:
        """The vehicles in order, at most about MAX_ANNEX_ENTRIES rows."""
        of_vehicle: dict[tuple[str, str], list[Entry]] = {one: [] for one in self._annex_vehicles[1]}
        for entry in self._document["annex"]:
            if (one := (entry["tenant"], entry["device"])) in of_vehicle:
                of_vehicle[one].append(entry)
        line_of = {line["invoice_line_identifier"]: line for line in self._document["lines"]}
        for (tenant, device), entries in of_vehicle.items():
            device_id = f"{tenant}/{device}"
            accounts = dict.fromkeys(line_of[entry["line"]]["account_name"] for entry in entries)
            yield VehiclePart(
                name=self.vehicle(device_id) if device else ", ".join(accounts),
                rows=tuple(row for entry in entries for row in self._rows(line_of[entry["line"]], entry)),
                net_amount=self._minor(sum(entry["amount_minor"] for entry in entries)),
            )

    def vehicle(self, device_id: str) -> str:
        """A vehicle with its name, by TENANT/DEVICE."""
        return self._named(device_id, self._look.vehicles.get(device_id))

    def part(self, line: Document, entry: Entry) -> Row:
        """A vehicle's part of a line, in `annex_columns`."""
        metered = entry["metered"]
        return (
            str(entry["line"]),
            self.item(line, (entry.get("parts") or "").split()),
            self._exact(line, entry["quantity_base"]),
            self._exact(line, entry["free_base"]) if entry["free_base"] else "",
            self.language.number(str(metered["rows"])) if metered else "",
            self._minor(entry["amount_minor"]),
        )

    def _rows(self, line: Document, entry: Entry) -> Iterator[Row]:
        """A vehicle's part of a line, and the visits or passages that it lists."""
        yield self.part(line, entry)
        for one in (entry.get("parts") or "").split() if line["kind"] == "usage" else ():
            if one.startswith("+"):
                text = self._say("annex.more_facts", count=self.language.number(one[1:]))
            else:
                begin, base, minor = one.split("/")
                local = datetime.fromisoformat(begin).astimezone(
                    zone_of(self._document["invoicing_period"]["time_zone"])
                )
                unit = line["quantity"]["unit"]
                exact = quantity_text(Meter(line["meter"]), int(base), unit)
                quantity = self.language.quantity(exact, unit) if line["meter"] == Meter.STAY else ""
                said = f"{self.language.day(local.date().isoformat())} {local:%H:%M}", quantity
                text = f"{', '.join(filter(None, said))}: {self._minor(int(minor))} {self._currency}"
                text += f" {self._say('price.vat_included')}" if "gross_minor" in entry else ""
            yield ("", f"– {text}", "", "", "", "")

    def _exact(self, line: Document, base: int) -> str:
        if not line["quantity"]:
            return ""
        unit = line["quantity"]["unit"]
        return self.language.measure(quantity_text(Meter(line["meter"]), base, unit), unit)

    def _minor(self, minor: int) -> str:
        return self.language.number(amount_text(minor, self._currency))

    @property
    def annex_note(self) -> str:
        """How many vehicles the annex leaves out, and their sum; "" for none."""
        known, shown = self._annex_vehicles
        left = known - {*shown}
        if not left:
            return ""
        annex = self._document["annex"]
        rest = sum(one["amount_minor"] for one in annex if (one["tenant"], one["device"]) in left)
        return self._say(
            "annex.more",
            vehicles=self.language.number(str(len(left))),
            amount=self._minor(rest),
            currency=self._currency,
        )

    # Remarks.

    @property
    def remarks(self) -> list[str]:
        kind = self._document["invoice_type_code"]
        rounded = any(line["quantity"] for line in self._document["lines"])
        return [
            *([self._say("remark.provisional")] if "preview" in self._document else []),
            *([self._say(f"remark.signs_{kind}")] if kind != DocumentType.INVOICE else []),
            *([self._say("remark.rounded")] if rounded else []),
        ]

    @property
    def provenance(self) -> list[str]:
        """Snapshot, completeness, decisions, and what the digest is for."""
        certificates = self._document["certificates"]
        # texts of the centre, in English
        said = [certificates["unknown"].capitalize(), *certificates["doubtful"], *certificates["decisions"]]
        notes = [f"{one}." for one in said if one]
        if preview := self._document.get("preview"):
            facts: dict[str, Any] = {"moment": preview["as_of"], "vehicles": preview["devices"]}
            return [" ".join([self._say("source.preview", **facts, incomplete=len(preview["incomplete"])), *notes])]
        states = sorted(certificates["devices_by_state"].items())
        named = ", ".join(f"{count} {self.language.known('state', state)}" for state, count in states)
        source = self._say(
            "source.snapshot", snapshot=self._document["snapshot"], states=named or self._say("source.none")
        )
        return [" ".join([source, *notes]), self._say("source.digest", digest=self._document["digest"])]


def _in_fours(iban: str) -> str:
    return " ".join(iban[at : at + 4] for at in range(0, len(iban), 4))
