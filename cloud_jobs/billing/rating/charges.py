"""The charges of a payer for one period, each with the usage rows that it comes from, and the tax on them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple

from cloud_jobs.billing.contracts import VatCategory, tax_text
from cloud_jobs.billing.contracts.fields import Attributes
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating.terms import TERMS
from cloud_jobs.billing.units import WITHOUT_ZONE, Meter, round_ratio
from cloud_jobs.lake.schemas import WHOLE_DEVICE

# Usage as the input of rating.


class Cell(NamedTuple):
    """A quantity (in the meter's base unit) with everything that a price can depend on.

    `zone`: "" outside all zones and for meters without zones; the gate of a crossing. `day`: local day; None if the
    account's tariff has no daily cap. `window`: "" for none, and for active days. `version`: position of the account's
    tariff version, from 0; -1 before the first. `attributes`: of the device, those that a price names.
    """

    account: str
    tenant: str
    device: str
    region: str
    meter: Meter
    zone: str
    day: date | None
    window: str
    version: int
    quantity: int
    attributes: Attributes = ()


class MeteredRows(NamedTuple):
    """The usage rows of a device and zone: number, first and last hour, and SHA-256 (hex) of their digests by hour.

    Rows of zeros are left out.
    """

    rows: int
    first_hour: datetime
    last_hour: datetime
    digest: str


class MeteredKey(NamedTuple):
    """Account, device and zone of usage rows; the zone may be WHOLE_DEVICE."""

    account: str
    tenant: str
    device: str
    zone: str


def metered_key(account: str, tenant: str, device: str, meter: Meter, zone: str) -> MeteredKey:
    """The usage rows that a charge of a meter comes from."""
    return MeteredKey(account, tenant, device, WHOLE_DEVICE if meter in WITHOUT_ZONE else zone)


class ChargeKind(StrEnum):
    """Why an amount is charged. A cap is a negative charge, a fee may be one."""

    USAGE = "usage"
    CAP = "cap"
    FEE = "fee"
    MINIMUM = "minimum fee"


MOST_MINOR: Final = 10**15
"""Bound of the sum of absolute amounts of a payer and period: exact as a float, too."""
MOST_QUANTITY: Final = 10**18
"""Bound of the quantity of a charge, which is stored in 64 bits."""
_METER_PLACE = {meter: place for place, meter in enumerate(Meter, start=1)}
_KIND_PLACE = {kind: place for place, kind in enumerate(ChargeKind)}


MAX_PARTS: Final = 100
"""The most facts that a charge lists one by one."""


def window_id(window: str) -> str:
    """The id of a window with its hours (`Window.text`)."""
    return window.partition(" ")[0].removesuffix(":")


VAT_INCLUDED: Final = TERMS["vat_included"]
"""The end of the text of a price that includes tax; the charge's amount is without it."""


class ChargeKey(NamedTuple):
    """What a charge is for; unique within a payer and period. "" stands for none.

    `price`: the price as text, so that two versions of a tariff with the same price have one charge: `0.45 EUR/km`,
    `graduated 0.50 to 100, 0.30 EUR/km`. `window`: with its hours, `night (mon-fri 22:00-06:00)`. `tax`: what it is
    taxed with (`tax_text`).
    """

    account: str
    region: str = ""
    tenant: str = ""
    device: str = ""
    kind: ChargeKind = ChargeKind.USAGE
    meter: Meter | None = None
    zone: str = ""
    window: str = ""
    price: str = ""
    tax: str = ""

    @property
    def window_id(self) -> str:
        return window_id(self.window)

    @property
    def without_vat_included(self) -> ChargeKey:
        """The key that rating gives it, before the amount is without tax."""
        return self._replace(price=self.price.removesuffix(VAT_INCLUDED))

    @property
    def order(self) -> tuple[str, str, str, str, int, int, str, str, str, str]:
        """The sort key of charges on a document."""
        kind, meter = _KIND_PLACE[self.kind], _METER_PLACE[self.meter] if self.meter else 0
        return (
            *(self.account, self.region, self.tenant, self.device),
            *(kind, meter, self.zone, self.window, self.price, self.tax),
        )


class Charge(NamedTuple):
    """The amount owed for one key.

    `quantity` and its `free` part are in the meter's base unit; a fee has the quantity 1. `amount_minor` is in the
    payer's currency, rounded once; a pool of devices is rounded as a whole and split by largest remainder. `parts`: of
    a daily cap, the days that it reduced, as `2026-03-02 2026-03-05`; of facts, the first MAX_PARTS with begin,
    quantity and amount, as `2026-03-02T09:00:00Z/2400000/300`, and how many more there are, as `+17`. `gross_minor`: of
    a price that includes tax, the amount with it; otherwise 0.
    """

    key: ChargeKey
    quantity: int
    free: int
    amount_minor: int
    metered: MeteredRows | None
    parts: str | None = None
    gross_minor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaxGroup:
    """EN 16931 BG-23: the taxable amount of one category and rate, and the tax on it, rounded once (BR-CO-17)."""

    category: VatCategory
    rate: Decimal
    exemption_reason: str | None
    taxable_minor: int
    tax_minor: int

    @property
    def tax(self) -> str:
        return tax_text(self.category, self.rate)


def rate_of(tax: str) -> tuple[int, int]:
    """The rate of a tax (`tax_text`) in per cent, as an integer ratio."""
    return Decimal(tax.partition(" ")[2]).as_integer_ratio()


def tax_group(tax: str, reason: str | None, taxable_minor: int) -> TaxGroup:
    """The tax on the sum of the charges of one category and rate (BR-CO-17)."""
    category, rate = tax.split(" ")
    numerator, denominator = rate_of(tax)
    return TaxGroup(
        category=VatCategory(category),
        rate=Decimal(rate),
        exemption_reason=reason,
        taxable_minor=taxable_minor,
        # the rate is in per cent
        tax_minor=round_ratio(taxable_minor * numerator, 100 * denominator),
    )


def by_tax(charges: Iterable[Charge]) -> dict[str, int]:
    """The sums of charges that are taxed together."""
    found: dict[str, int] = {}
    for charge in charges:
        tax = charge.key.tax
        found[tax] = found.get(tax, 0) + charge.amount_minor
    return found


class Owed(NamedTuple):
    """The sums that a payer owes for a period, in minor units.

    `net_minor`: BT-109, the sum of the charges. `rounding_minor`: BT-114.
    """

    payer: str
    currency: str
    net_minor: int
    taxes: tuple[TaxGroup, ...]
    rounding_minor: int = 0

    @property
    def tax_minor(self) -> int:
        """BT-110."""
        return sum(group.tax_minor for group in self.taxes)

    @property
    def payable_minor(self) -> int:
        """BT-115, the amount to pay."""
        return self.net_minor + self.tax_minor + self.rounding_minor


@dataclass(frozen=True, kw_only=True)
class RatedAccount:
    """The charges of a payer and its children for a period, in the order of their keys, and the tax.

    `rounding_minor`: BT-114, what is added to net and tax so that the sum to pay is the one that was agreed.
    """

    payer: str
    currency: str
    charges: tuple[Charge, ...]
    taxes: tuple[TaxGroup, ...]
    rounding_minor: int = 0

    @property
    def owed(self) -> Owed:
        return Owed(self.payer, self.currency, self.net_minor, self.taxes, self.rounding_minor)

    @cached_property
    def net_minor(self) -> int:
        """BT-109."""
        return sum(charge.amount_minor for charge in self.charges)

    @property
    def tax_minor(self) -> int:
        """BT-110."""
        return sum(group.tax_minor for group in self.taxes)

    @property
    def gross_minor(self) -> int:
        """BT-112."""
        return self.net_minor + self.tax_minor

    @property
    def payable_minor(self) -> int:
        """BT-115, the amount to pay."""
        return self.gross_minor + self.rounding_minor


def check_bounds(charges: Sequence[Charge]) -> None:
    """Raises BillingError. Checked on charges, because only usage and prices together make an amount too large."""
    if sum(abs(one.amount_minor) for one in charges) > MOST_MINOR:
        largest = max(charges, key=lambda one: abs(one.amount_minor))
        raise BillingError(
            f"a charge of account {largest.key.account!r} ({largest.key.price or 'fee or cap'}) is "
            f"{largest.amount_minor:,} minor units, above the maximum; check the price and exchange rate"
        )
    for one in charges:
        if one.quantity > MOST_QUANTITY:
            meter, device = one.key.meter, one.key.device
            raise BillingError(f"the {meter} of {device!r} is {one.quantity:,} base units, more than can be metered")


# Differences between the newest closing and the posted documents.


_NOT_ZERO: Final = re.compile("/(-?)(?=[1-9])")


def signed_parts(parts: str | None, sign: int) -> str | None:
    """`Charge.parts` with quantities and amounts times 1 or -1."""
    if not parts or sign > 0:
        return parts
    return _NOT_ZERO.sub(lambda found: "/" if found[1] else "/-", parts)


def _parts_together(some: str | None, other: str | None) -> str | None:
    """The facts of both, added up; None where single ones are not known: in a day of a cap, or among those left out."""
    if not some or not other:
        return some or other
    found: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for part in (*some.split(), *other.split()):
        begin, *amounts = part.split("/")
        if not amounts:
            return None
        quantity, minor = found[begin]
        found[begin] = quantity + int(amounts[0]), minor + int(amounts[1])
    return " ".join(f"{begin}/{one[0]}/{one[1]}" for begin, one in sorted(found.items()) if any(one)) or None


def taken_back(rated: RatedAccount) -> RatedAccount:
    """The account with every amount negated."""
    charges = tuple(
        one._replace(
            quantity=-one.quantity,
            free=-one.free,
            amount_minor=-one.amount_minor,
            metered=None,
            parts=signed_parts(one.parts, -1),
            gross_minor=-one.gross_minor,
        )
        for one in rated.charges
    )
    taxes = tuple(replace(one, taxable_minor=-one.taxable_minor, tax_minor=-one.tax_minor) for one in rated.taxes)
    return replace(rated, charges=charges, taxes=taxes, rounding_minor=-rated.rounding_minor)


def difference(before: RatedAccount, now: RatedAccount) -> RatedAccount:
    """The charges and taxes of the note that brings the posted amounts to `now`; empty if nothing changes.

    A charge is included if quantity, free quantity or amount differ; what is taxed otherwise is another charge. Tax and
    rounding are differences, not those of the note's own sum, so that all documents together have those of the whole.
    """
    changes = {one.key: one for one in taken_back(before).charges}
    for one in now.charges:
        was = changes.get(one.key, Charge(one.key, 0, 0, 0, None))
        changes[one.key] = one._replace(
            quantity=one.quantity + was.quantity,
            free=one.free + was.free,
            amount_minor=one.amount_minor + was.amount_minor,
            gross_minor=one.gross_minor + was.gross_minor,
            parts=_parts_together(was.parts, one.parts),
        )
    charges = [one for one in changes.values() if one.quantity or one.free or one.amount_minor]
    # exemption reasons are text only; the newest is shown
    taxes = {group.tax: group for group in now.taxes}
    for group in before.taxes:
        owed = taxes.get(group.tax, replace(group, taxable_minor=0, tax_minor=0))
        taxable, tax = owed.taxable_minor - group.taxable_minor, owed.tax_minor - group.tax_minor
        taxes[group.tax] = replace(owed, taxable_minor=taxable, tax_minor=tax)
    # a group of nothing has lines that add up to nothing
    lined = {charge.key.tax for charge in charges}
    note = RatedAccount(
        payer=now.payer,
        currency=now.currency,
        charges=tuple(sorted(charges, key=lambda one: one.key.order)),
        taxes=tuple(one for tax, one in sorted(taxes.items()) if tax in lined or one.taxable_minor or one.tax_minor),
        rounding_minor=now.rounding_minor - before.rounding_minor,
    )
    assert note.net_minor == now.net_minor - before.net_minor
    assert note.tax_minor == now.tax_minor - before.tax_minor
    return note
