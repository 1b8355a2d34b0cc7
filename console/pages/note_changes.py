"""What a credit or debit note changes: each line as it was posted before and as it is owed now, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from cloud_jobs.billing.documents import Document
from cloud_jobs.billing.documents.document import lines_and_annex
from cloud_jobs.billing.documents.look import Look
from cloud_jobs.billing.documents.presentation import Presentation
from cloud_jobs.billing.rating import Charge
from cloud_jobs.billing.register.closing import Closing
from cloud_jobs.billing.register.documents_of import IssuedAgain
from console.page import Column, Kind, Row, Table
from console.pages.bills import money

MAX_CHANGES: Final = 500
MAX_NAMED: Final = 10
CHANGES: Final = (
    Column("item", "Item"),
    Column("account", "Account"),
    Column("quantity_before", "Quantity before", Kind.MONEY),
    Column("price_before", "Price before"),
    Column("amount_before", "Amount before", Kind.MONEY),
    Column("quantity_now", "Quantity now", Kind.MONEY),
    Column("price_now", "Price now"),
    Column("amount_now", "Amount now", Kind.MONEY),
    Column("difference", "Difference", Kind.MONEY),
)
_KEY: Final = ("account", "region", "kind", "meter", "zone", "window", "price")
_TAX: Final = ("invoiced_item_vat_category_code", "invoiced_item_vat_rate")
_NOTHING: Final = ("",) * 6
_UNUSED: Final = (0, frozenset[str]())


def changes_of(issued: IssuedAgain, look: Look) -> Table:
    """The lines that a note changes. Differences are what is owed now less what was posted before it."""
    before, now = (_lines(issued, one, look) for one in (issued.before, issued.closing))
    currency = issued.document["invoice_currency_code"]
    rows, net = list[Row](), 0
    for key in dict.fromkeys((*now, *before)):
        (was, was_line), (text, line) = (of.get(key, (_NOTHING, None)) for of in (before, now))
        was_minor, minor = (one["invoice_line_net_amount"]["minor"] if one else 0 for one in (was_line, line))
        net += minor - was_minor
        if (was[3], was_minor) != (text[3], minor):
            rows.append(
                {
                    "item": text[1] or was[1],
                    "account": key[0],
                    "quantity_before": was[3],
                    "price_before": was[4].split("\n")[0],
                    "amount_before": was[5],
                    "quantity_now": text[3],
                    "price_now": text[4].split("\n")[0],
                    "amount_now": text[5],
                    "difference": money(minor - was_minor, currency),
                    "difference_minor": minor - was_minor,
                }
            )
    rows.sort(key=lambda row: -abs(row["difference_minor"]))
    note = (
        f"{' '.join(_reasons(issued, rows))} Difference: what is owed now less what was posted before, in all"
        f" {money(net, currency)} net; negative is credited. The document below states a credit as positive."
    )
    if len(rows) > MAX_CHANGES:
        note += f" The largest {MAX_CHANGES:,} of {len(rows):,} changes."
    return Table("changes", "What this note changes", CHANGES, tuple(rows[:MAX_CHANGES]), note.strip())


def _lines(
    issued: IssuedAgain, closing: Closing | None, look: Look
) -> Mapping[tuple[str, ...], tuple[tuple[str, ...], Document]]:
    """The lines of a closing by what they charge, with the texts of their columns."""
    if closing is None or not (charges := issued.charges[closing.id]):
        return {}
    currency = issued.document["invoice_currency_code"]
    lines, subtotals, _ = lines_and_annex(charges, closing.key.payer, {}, currency, 1)
    show = Presentation(issued.document | {"lines": lines, "subtotals": subtotals}, look)
    texts = (row for group in show.line_groups for row in group.rows)
    return {
        tuple(line[name] or "" for name in (*_KEY, *_TAX)): (row, line) for line, row in zip(lines, texts, strict=True)
    }


def _reasons(issued: IssuedAgain, rows: list[Row]) -> Iterator[str]:
    """Which vehicles' usage is another than before, and which prices follow from it."""
    if issued.closing is None:
        yield "The invoice is void: all that was posted is taken back."
        return
    assert issued.before is not None, "a note follows an invoice"
    before, now = (_metered(issued.charges[one.id]) for one in (issued.before, issued.closing))
    hours = {
        one: now.get(one, _UNUSED)[0] - before.get(one, _UNUSED)[0]
        for one in sorted({*before, *now})
        if before.get(one) != now.get(one)
    }
    if hours:
        named = ", ".join(
            f"{one} ({count:+,} clock hours)" if count else one for one, count in [*hours.items()][:MAX_NAMED]
        )
        more = f" and {len(hours) - MAX_NAMED:,} more" if len(hours) > MAX_NAMED else ""
        yield f"The usage of these vehicles is metered from other records than before: {named}{more}."
    else:
        yield "All usage is as before; contracts, prices or corrections of bills changed."
    for row in rows[:MAX_NAMED]:
        was, price = row["price_before"], row["price_now"]
        if was and price and was != price:
            what = f"{row['item']} ({row['account']})"
            yield f"{what}: the quantity is in another tier, so the price is {price}, not {was}."


def _metered(charges: Iterable[Charge]) -> dict[str, tuple[int, frozenset[str]]]:
    """Of each vehicle the most clock hours of a charge, and the digests of the usage that it was metered from."""
    found: dict[str, tuple[int, frozenset[str]]] = {}
    for one in charges:
        if one.metered is not None and one.key.device:
            name = f"{one.key.tenant}/{one.key.device}"
            hours, digests = found.get(name, _UNUSED)
            found[name] = max(hours, one.metered.rows), digests | {one.metered.digest}
    return found
