"""Caps: what is above the most that was agreed is taken off again, first by day, then of the period. And the minimum.

A cap never raises, and never takes off more than is there. Caps of each device come before caps of the account, caps
of some meters before caps of all; each looks at what the ones before it left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from cloud_jobs.billing.contracts import Cap, CapSpan, Pool
from cloud_jobs.billing.meters import Meter, round_ratio
from cloud_jobs.billing.rating.account_rating import AccountRating, DayUse
from cloud_jobs.billing.rating.charges import Charge, ChargeKey, ChargeKind
from cloud_jobs.billing.rating.price_book import PriceBook
from cloud_jobs.billing.rating.price_text import cap_text, minimum_text
from cloud_jobs.billing.rating.split import Exact, split

Scope = tuple[str, str]
"""Tenant and device of what a cap adds up; two empty texts: the account."""


class CapInForce(NamedTuple):
    """A cap, its words, what it is in the payer's minor unit, and the versions of the tariff that have it."""

    cap: Cap
    text: str
    most: Fraction
    versions: frozenset[int]

    def of(self, tenant: str, device: str, meter: Meter) -> Scope | None:
        """Where an amount is added; None: the cap does not look at it."""
        if self.cap.meters and meter not in self.cap.meters:
            return None
        return (tenant, device) if self.cap.pool is Pool.DEVICE else ("", "")


class Left:
    """What charges and caps so far leave of each device and meter, in minor units."""

    def __init__(self, account: str, charges: Iterable[Charge]) -> None:
        self._account = account
        self._amounts: dict[tuple[str, str, Meter], int] = {}
        self._region_of: dict[Scope, str] = {("", ""): ""}
        for charge in charges:
            key, meter = charge.key, charge.key.meter
            assert meter is not None
            of = key.tenant, key.device, meter
            self._amounts[of] = self._amounts.get(of, 0) + charge.amount_minor
            device = key.tenant, key.device
            self._region_of[device] = min(self._region_of.get(device, key.region), key.region)

    def by_scope(self, cap: CapInForce) -> dict[Scope, list[tuple[str, str, Meter]]]:
        """The keys of what a cap looks at, by what it adds up, all in order."""
        found: defaultdict[Scope, list[tuple[str, str, Meter]]] = defaultdict(list)
        for of in sorted(self._amounts):
            scope = cap.of(*of)
            if scope is not None:
                found[scope].append(of)
        return found

    def total(self, keys: Iterable[tuple[str, str, Meter]]) -> int:
        """The sum of these."""
        return sum(self._amounts[of] for of in keys)

    def take(self, cap: CapInForce, kind: ChargeKind, keys: list[tuple[str, str, Meter]], minor: int) -> Charge:
        """The charge that takes so much off; each key loses its share, so that the next cap sees what is left."""
        amounts = [self._amounts[of] for of in keys]
        for of, part in zip(keys, split(minor, Exact(minor), amounts), strict=True):
            self._amounts[of] -= part
            assert self._amounts[of] >= 0
        tenant, device = cap.of(*keys[0]) or ("", "")
        key = ChargeKey(
            account=self._account,
            region=self._region_of[tenant, device],
            tenant=tenant,
            device=device,
            kind=kind,
            meter=cap.cap.meters[0] if len(cap.cap.meters) == 1 else None,
            price=cap.text,
        )
        return Charge(key=key, quantity=0, free=0, amount_minor=-minor, metered=None)


def caps_in_force(book: PriceBook, span: CapSpan, versions: Iterable[int]) -> list[CapInForce]:
    """The caps of these versions of a tariff in the order in which they apply. Those that say the same are one."""
    found: dict[str, tuple[Cap, Fraction, set[int]]] = {}
    for version in versions:
        tariff = book.tariffs[version]
        for cap in tariff.caps:
            if cap.per is span:
                most = Fraction(cap.amount) * book.worths[version]
                found.setdefault(cap_text(cap, tariff.currency), (cap, most, set()))[2].add(version)
    caps = [CapInForce(cap, text, most, frozenset(of)) for text, (cap, most, of) in found.items()]
    return sorted(caps, key=lambda one: (one.cap.pool is Pool.ACCOUNT, not one.cap.meters, one.text))


def daily_caps(rating: AccountRating, left: Left) -> list[Charge]:
    """What is above the caps of a day: exact by day, added over the period, rounded once for each device or account.

    Where every use was under the cap, the rest is never above the caps of the days together, whatever was rounded.
    """
    charges = []
    days = dict(rating.days)
    for cap in caps_in_force(rating.book, CapSpan.DAY, range(len(rating.book.tariffs))):
        above, together = _above_by_day(cap, days, rating.book.parts)
        for scope, keys in left.by_scope(cap).items():
            if scope not in together:
                continue
            total = left.total(keys)
            over = above.get(scope, Fraction(0))
            rest = total - round_ratio(over.numerator, over.denominator)
            if cap.versions >= rating.versions:
                most = together[scope]
                rest = min(rest, round_ratio(most.numerator, most.denominator))
            minor = total - max(rest, 0)
            if minor > 0:
                charges.append(left.take(cap, ChargeKind.DAILY_CAP, keys, minor))
    return charges


def period_caps(book: PriceBook, left: Left) -> list[Charge]:
    """What is above the caps that the last version has for a period, of amounts that are rounded."""
    charges = []
    for cap in caps_in_force(book, CapSpan.PERIOD, range(len(book.tariffs))[-1:]):
        most = round_ratio(cap.most.numerator, cap.most.denominator)
        for keys in left.by_scope(cap).values():
            minor = left.total(keys) - most
            if minor > 0:
                charges.append(left.take(cap, ChargeKind.PERIOD_CAP, keys, minor))
    return charges


def minimum_fee(account: str, book: PriceBook, total_minor: int) -> list[Charge]:
    """What is missing to the least that the last version asks for a period; none if nothing is."""
    if not book.tariffs or book.tariffs[-1].minimum_amount is None:
        return []
    tariff = book.tariffs[-1]
    assert tariff.minimum_amount is not None
    least = Fraction(tariff.minimum_amount) * book.worths[-1]
    minor = round_ratio(least.numerator, least.denominator) - total_minor
    if minor <= 0:
        return []
    text = minimum_text(tariff.minimum_amount, tariff.currency)
    key = ChargeKey(account=account, kind=ChargeKind.MINIMUM, price=text)
    return [Charge(key=key, quantity=0, free=0, amount_minor=minor, metered=None)]


def _above_by_day(
    cap: CapInForce, days: dict[DayUse, int | Fraction], parts: int
) -> tuple[dict[Scope, Fraction], dict[Scope, Fraction]]:
    """For each scope what is above the cap on its days, and the caps of these days together. What is above is taken off
    `days`, from each of the day's amounts in proportion."""
    most = cap.most * parts
    of_day: defaultdict[tuple[Scope, object], list[DayUse]] = defaultdict(list)
    for use in days:
        scope = cap.of(use.tenant, use.device, use.meter) if use.version in cap.versions else None
        if scope is not None:
            of_day[scope, use.day].append(use)
    above: defaultdict[Scope, Fraction] = defaultdict(Fraction)
    together: defaultdict[Scope, Fraction] = defaultdict(Fraction)
    for (scope, _), uses in of_day.items():
        total = sum(days[use] for use in uses)
        together[scope] += cap.most
        if total > most:
            above[scope] += (total - most) / parts
            for use in uses:
                days[use] *= most / total
    return above, together
