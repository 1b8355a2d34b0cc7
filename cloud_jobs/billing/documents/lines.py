"""The lines of a document: charges alike are one line for all their vehicles; the annex has each vehicle's part.

EN 16931 wants an item's price that is not negative (BR-27), and profiles of it check that quantity times price gives
the amount. With tiers, allowances and one rounding no price of the tariff does. So the item's price is the line's
amount for its whole quantity (BT-146 with the base quantity BT-149), and the tariff's price stands beside it as text.
What has no quantity of the same sign, as a cap, a minimum fee or a corrected price, is one piece, given or taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.contracts import VatCategory
from cloud_jobs.billing.currency import amount_text
from cloud_jobs.billing.documents.annex import Columns, annex_columns
from cloud_jobs.billing.documents.canonical import Document
from cloud_jobs.billing.meters import MEASURE_OF, Meter, place_text, quantity_text
from cloud_jobs.billing.rating import Charge, ChargeKey, ChargeKind, MeteredRows, TaxGroup

ALL_REGIONS: Final = "all regions"
NOTHING_USED: Final = "Nothing was used in this period"
_PIECE: Final = "C62"
_OF_VEHICLE: Final = ("tenant", "device")
_ALIKE: Final = itemgetter(*(at for at, name in enumerate(ChargeKey._fields) if name not in _OF_VEHICLE))


class GroupKey(NamedTuple):
    """What the charges of one line have in common: all of their keys but the vehicle, and the tax."""

    account: str
    region: str
    kind: ChargeKind
    meter: Meter | None
    zone: str
    window: str
    price: str
    part: int
    """Counted from 0: charges of one part are taxed alike."""


class _Group(NamedTuple):
    """The charges of a line, and what they are together."""

    quantity: int
    free: int
    amount_minor: int
    charges: Sequence[Charge]

    @classmethod
    def of(cls, charges: Sequence[Charge], sign: int) -> _Group:
        # column by column: a large month has ten million charges
        _, quantities, free, amounts, _ = zip(*charges, strict=True) if charges else ((),) * 5
        return cls(sign * sum(quantities), sign * sum(free), sign * sum(amounts), charges)


def amount(minor: int, currency: str) -> Document:
    """An amount twice: exact, and as a person reads it."""
    return {"minor": minor, "text": amount_text(minor, currency)}


def rate_text(tax: TaxGroup) -> str | None:
    """The rate of a tax; of what is not subject to VAT there is none, not even 0 (BR-O-05)."""
    return None if tax.category is VatCategory.OUT_OF_SCOPE else f"{tax.rate.normalize():f}"


def lines_and_annex(
    parts: Sequence[tuple[Iterable[Charge], TaxGroup]], payer: str, names: Mapping[str, str], currency: str, sign: int
) -> tuple[list[Document], list[Document], Columns]:
    """Lines, sub-totals of each account and region, and the annex. The payer's own come first, then its children's.

    `parts`: charges and the one tax on them.
    """
    groups: dict[GroupKey, _Group] = {}
    for part, (charges, _) in enumerate(parts):
        alike: defaultdict[tuple[Any, ...], list[Charge]] = defaultdict(list)
        for charge in charges:
            alike[_ALIKE(charge.key)].append(charge)
        groups |= {GroupKey._make((*of, part)): _Group.of(members, sign) for of, members in alike.items()}
    ordered = sorted(groups.items(), key=lambda item: _order(item[0], payer)) or [(_nothing(payer), _Group.of((), 1))]
    lines = [
        _line(number, key, group, names, currency) | _taxed(parts[key.part][1])
        for number, (key, group) in enumerate(ordered, 1)
    ]
    annex = annex_columns((group.charges for _, group in ordered), sign)
    return lines, list(_subtotals(lines, currency)), annex


def _taxed(tax: TaxGroup) -> Document:
    return {"invoiced_item_vat_category_code": tax.category.value, "invoiced_item_vat_rate": rate_text(tax)}


def charges_of(document: Document) -> tuple[Charge, ...]:
    """The charges that a document was made of, as rated, in the order of their keys."""
    sign = document["posting_sign"]
    line_of = {line["invoice_line_identifier"]: line for line in document["lines"]}
    charges = (_charge(line_of[entry["line"]], entry, sign) for entry in document["annex"])
    return tuple(sorted(charges, key=lambda charge: charge.key.order))


def _order(key: GroupKey, payer: str) -> tuple[Any, ...]:
    # what is of no region, as the minimum fee, closes its account
    alike = ChargeKey(key.account, key.region, "", "", key.kind, key.meter, key.zone, key.window, key.price)
    return (key.account != payer, key.account, not key.region, alike.order, key.part)


def _nothing(payer: str) -> GroupKey:
    return GroupKey(payer, "", ChargeKind.USAGE, None, "", "", "", 0)


def _line(number: int, key: GroupKey, group: _Group, names: Mapping[str, str], currency: str) -> Document:
    # a cap is of a meter, and measures nothing
    meter = key.meter if key.kind is ChargeKind.USAGE else None
    vehicles = {(charge.key.tenant, charge.key.device) for charge in group.charges if charge.key.device}
    return {
        "invoice_line_identifier": number,
        "account": key.account,
        "account_name": names.get(key.account, key.account),
        "region": key.region,
        "kind": key.kind.value,
        "meter": key.meter and key.meter.value,
        "zone": key.zone,
        "window": key.window,
        "price": key.price,
        "vehicles": len(vehicles),
        "quantity": _measured(meter, group),
        **_stated(meter, group.quantity, group.amount_minor, currency),
        "item_name": _item_name(key) if group.charges else NOTHING_USED,
        "invoice_line_net_amount": amount(group.amount_minor, currency),
    }


def _measured(meter: Meter | None, group: _Group) -> Document | None:
    if meter is None:
        return None
    measure = MEASURE_OF[meter]
    return {
        "base": group.quantity,
        "base_unit": measure.base,
        "free_base": group.free,
        "text": quantity_text(meter, group.quantity),
        "free_text": quantity_text(meter, group.free),
        "unit": measure.unit,
    }


def _stated(meter: Meter | None, quantity: int, amount_minor: int, currency: str) -> Document:
    """Quantity and price as EN 16931 wants them: their product, by the base quantity, is exactly the line's amount."""
    text = "0" if meter is None else quantity_text(meter, quantity)
    whole = Decimal(text)
    if meter is None or not whole or (amount_minor and (whole > 0) != (amount_minor > 0)):
        pieces = (amount_minor > 0) - (amount_minor < 0)
        text, base, code = str(pieces), "1", _PIECE
    else:
        base, code = text.removeprefix("-"), MEASURE_OF[meter].code
    return {
        "invoiced_quantity": text,
        "invoiced_quantity_unit_of_measure_code": code,
        "item_net_price": amount_text(abs(amount_minor), currency),
        "item_price_base_quantity": base,
    }


def _item_name(key: GroupKey) -> str:
    if key.kind is not ChargeKind.USAGE or key.meter is None:
        # it is of all places; of several meters the price names each
        return ": ".join(part for part in (key.kind.value.capitalize(), key.meter and key.meter.value) if part)
    place, window = place_text(key.meter, key.zone), key.window and f"window {key.window}"
    return ", ".join(part for part in (key.meter.value.capitalize(), place, window) if part)


def _subtotals(lines: list[Document], currency: str) -> Iterator[Document]:
    for (account, name, region), found in groupby(
        lines, key=lambda line: (line["account"], line["account_name"], line["region"])
    ):
        members = list(found)
        yield {
            "account": account,
            "account_name": name,
            "region": region,
            "first_line": members[0]["invoice_line_identifier"],
            "last_line": members[-1]["invoice_line_identifier"],
            "net_amount": amount(sum(line["invoice_line_net_amount"]["minor"] for line in members), currency),
        }


def _charge(line: Document, entry: Document, sign: int) -> Charge:
    metered = entry["metered"]
    return Charge(
        key=ChargeKey(
            account=line["account"],
            region=line["region"],
            tenant=entry["tenant"],
            device=entry["device"],
            kind=ChargeKind(line["kind"]),
            meter=line["meter"] and Meter(line["meter"]),
            zone=line["zone"],
            window=line["window"],
            price=line["price"],
        ),
        quantity=sign * entry["quantity_base"],
        free=sign * entry["free_base"],
        amount_minor=sign * entry["amount_minor"],
        metered=metered
        and MeteredRows(
            metered["rows"], _moment(metered["first_hour"]), _moment(metered["last_hour"]), metered["digest"]
        ),
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
