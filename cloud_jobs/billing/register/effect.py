"""What stated contract versions change in the sums of past days, and by which prices, caps, fees, minimums and taxes.

Payers are rated with and without the versions at the lake's newest state. Nothing is written.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.contracts import Contracts, PayerContract, UnknownPayer
from cloud_jobs.billing.contracts.check import begin_of, with_stated
from cloud_jobs.billing.contracts.published import MODEL_OF
from cloud_jobs.billing.rating import ChargeKey, ChargeKind, RatedAccount
from cloud_jobs.billing.register.close import RatedPayer, UsageReader, payer_groups, rate_payers
from cloud_jobs.billing.register.closing import Days
from cloud_jobs.billing.register.current_contracts import agreed_with
from cloud_jobs.billing.units import amount_text
from cloud_jobs.lake.snapshot_reads import reference_rows
from cloud_jobs.lake.snapshots import newest_state
from cloud_jobs.lake.tables import Lake
from geo.reference.moments import FIRST_YEAR

MAX_PAYERS: Final = 1_000
"""The most payers that are rated, in the order of their names."""
MAX_CHANGES: Final = 10
"""The most changes that are shown without --json, and the most texts of a changed line."""
MAX_CHANGES_LISTED: Final = 10_000
"""The most changes of one payer with --json."""
_LEAD: Final = timedelta(days=2)
"""Local days begin less than this before the same day in UTC."""
Row = dict[str, Any]


class LineChange(NamedTuple):
    """What a version changes for lines of one account, meter, zone and window, or for a cap, fee, minimum or tax.

    `was`, `now`: the texts of the charges (`ChargeKey.price`) that differ; "" for none.
    """

    of: str
    was: str
    now: str
    was_minor: int
    now_minor: int


class PayerEffect(NamedTuple):
    """The sums to pay of a payer and the changed lines, largest first.

    `was_reason`, `reason`: why the sum is unknown without the versions, and with them; "" if it is known.
    """

    payer: str
    currency: str = ""
    was_minor: int = 0
    now_minor: int = 0
    lines: Sequence[LineChange] = ()
    was_reason: str = ""
    reason: str = ""

    @property
    def is_known(self) -> bool:
        return not (self.was_reason or self.reason)

    @property
    def text(self) -> str:
        """The change of the sum, or why there is none to name."""
        if self.reason and self.reason == self.was_reason:
            return f"cannot be rated, with these versions or without: {self.reason}"
        if self.reason:
            return f"cannot be rated: {self.reason}" + (f"; without them: {self.was_reason}" if self.was_reason else "")
        if self.was_reason:
            now = f"{amount_text(self.now_minor, self.currency)} {self.currency}"
            return f"until now unknown ({self.was_reason}) -> {now}"
        return _change(self.was_minor, self.now_minor, self.currency)


class Effect(NamedTuple):
    """`rated`: the accounts whose sums are known with and without the versions. `payers`: the others, then
    those whose sum or lines change, largest change first. `later`: the accounts whose stated devices begin later.
    """

    days: Days
    rated: int
    unrated: int
    payers: Sequence[PayerEffect]
    later: Sequence[str] = ()

    def values(self) -> Row:
        """For --json."""
        payers = [one._asdict() | {"lines": [line._asdict() for line in one.lines]} for one in self.payers]
        return {
            "period": days_text(*self.days),
            "rated": self.rated,
            "left_out": self.unrated,
            "payers": payers,
            "later": self.later,
        }

    def texts(self) -> Iterator[str]:
        """For people: the payers that cannot be rated, and the largest changes."""
        period = days_text(*self.days)
        left = f"; {self.unrated} more accounts were not rated" if self.unrated else ""
        for account in self.later[:MAX_CHANGES]:
            yield f"{period}: devices of {account} begin later; the sum with these versions is without them"
        if not self.payers:
            yield f"{period}: no amount changes (accounts rated: {self.rated}{left})"
            return
        for one in self.payers[:MAX_CHANGES]:
            yield f"{period}: {one.payer}: {one.text}"
            for line in one.lines[:MAX_CHANGES]:
                yield f"  {line.of}: {_change(line.was_minor, line.now_minor, one.currency)}"
                if line.was != line.now:
                    yield f"    {line.was or 'nothing'} -> {line.now or 'nothing'}"
            if more := len(one.lines) - MAX_CHANGES:
                yield from [f"  and {more} more"] if more > 0 else []
        others = max(len(self.payers) - MAX_CHANGES, 0)
        if others or left:
            yield f"{period}: {others} more accounts change or cannot be rated{left}"


def effect_of(lake: Lake, stated: Sequence[Row], days: Days, now: datetime) -> Effect:
    """Rates the payers that stated versions concern. A version that begins later is rated as if from the first day on.

    Raises LakeError, StoreUnavailable.
    """
    state = newest_state(lake)
    published = reference_rows(lake, state)
    rows = [row for row in stated if row["kind"] in MODEL_OF]
    before, after = Contracts(published), Contracts(with_stated(*_in_days(published, rows, days), now))
    changed = {(row["kind"], row["id"]) for row in rows}
    payers = sorted({*before.payers_of(changed), *after.payers_of(changed)})
    reader = UsageReader(lake, state, against_records=False, certifies=False)
    names = payers[:MAX_PAYERS]
    was, now_rated = (_rated(reader, one, names, days) for one in (before, after))
    # an account that gets no invoice in these days is no news
    found = [_effect(name, was.get(name), now_rated.get(name)) for name in names if name in {**was, **now_rated}]
    found.sort(key=lambda one: (one.is_known, -abs(one.now_minor - one.was_minor), one.payer))
    shown = [one for one in found if one.lines or not one.is_known]
    return Effect(days, sum(one.is_known for one in found), len(payers) - len(names), shown, [*_later(rows, days)])


def _later(stated: Sequence[Row], days: Days) -> Iterator[str]:
    """The accounts of which a version begins after the days, as do some of its devices."""
    for row in stated:
        begin = begin_of(row) if row["kind"] == "account" else None
        if begin and begin.date() > days[1]:
            devices = json.loads(row["body"]).get("devices") or ()
            begins = (str(one.get("begin"))[:10] for one in devices)
            if any(begin > days[1].isoformat() for begin in begins):
                yield row["id"]


def month_before(moment: datetime) -> Days:
    """The days of the calendar month before that of a moment."""
    last = date(moment.year, moment.month, 1) - timedelta(days=1)
    return last.replace(day=1), last


def _in_days(published: Sequence[Row], stated: Sequence[Row], days: Days) -> tuple[list[Row], list[Row]]:
    """The rows, such that versions of which none begins before the last day's end begin before the first day."""
    start, end = (datetime.fromisoformat(f"{day}T00:00:00+00:00") for day in days)
    # nothing is agreed before
    first_moment = datetime(FIRST_YEAR + 1, 1, 1, tzinfo=UTC)
    start, end = max(start - _LEAD, first_moment), end + _LEAD
    first: dict[tuple[str, str], tuple[datetime, Row]] = {}
    for row in stated:
        name, begin = (row["kind"], row["id"]), begin_of(row)
        if begin is not None and (name not in first or begin < first[name][0]):
            first[name] = begin, row
    later = {name: row for name, (begin, row) in first.items() if begin >= end}
    moved = [
        row | {"body": json.dumps(json.loads(row["body"]) | {"effective_from": start.isoformat()})}
        for row in later.values()
    ]
    kept = [
        row
        for row in published
        if (row["kind"], row["id"]) not in later or (begin := begin_of(row)) is None or begin < start
    ]
    return kept, [*(row for row in stated if (row["kind"], row["id"]) not in later), *moved]


def _rated(
    reader: UsageReader, contracts: Contracts, names: Collection[str], days: Days
) -> dict[str, RatedAccount | str]:
    """The charges of each payer that gets an invoice, or why they are unknown."""
    found, agreed = dict[str, RatedAccount | str](), list[PayerContract]()
    for name in names:
        one = agreed_with(contracts, name, days)
        if isinstance(one, PayerContract):
            agreed.append(one)
        elif not all(isinstance(fault, UnknownPayer) for fault in getattr(one, "faults", (one,))):
            found[name] = str(one)
    for group in payer_groups(agreed, tasks=1):
        for rated in rate_payers(reader, group):
            found[rated.contract.id] = rated.rated if isinstance(rated, RatedPayer) else rated.reason
    return found


def _effect(payer: str, was: RatedAccount | str | None, now: RatedAccount | str | None) -> PayerEffect:
    """None: the payer gets no invoice, and owes nothing."""
    rated = [one for one in (now, was) if isinstance(one, RatedAccount)]
    was_reason, reason = (one if isinstance(one, str) else "" for one in (was, now))
    if reason or not rated:
        return PayerEffect(payer, was_reason=was_reason, reason=reason or "it gets no invoice any more")
    nothing = RatedAccount(payer=payer, currency=rated[0].currency, charges=(), taxes=())
    before, after = (one if isinstance(one, RatedAccount) else nothing for one in (was, now))
    if before.currency != after.currency:
        return PayerEffect(payer, reason=f"its currency changes from {before.currency} to {after.currency}")
    lines = [] if was_reason else [*islice(_line_changes(before, after), MAX_CHANGES_LISTED)]
    lines.sort(key=lambda one: (-abs(one.now_minor - one.was_minor), one.of))
    sums = before.payable_minor, after.payable_minor
    return PayerEffect(payer, after.currency, *sums, lines, was_reason)


def _line_changes(before: RatedAccount, now: RatedAccount) -> Iterator[LineChange]:
    was, later = _sums(before), _sums(now)
    for of in dict.fromkeys([*was, *later]):
        old, new = was[of], later[of]
        if old != new:
            yield LineChange(of, _differing(old, new), _differing(new, old), old.total(), new.total())


def _sums(rated: RatedAccount) -> defaultdict[str, Counter[str]]:
    """The sums of lines that only differ by device, region and tax, by price; then taxes and rounding."""
    found = defaultdict[str, Counter[str]](Counter)
    for one in rated.charges:
        found[_line_of(one.key)][one.key.price] += one.amount_minor
    for group in rated.taxes:
        found[f"tax {group.tax}"][""] += group.tax_minor
    found["rounding of the sum to pay"][""] += rated.rounding_minor
    return found


def _differing(these: Counter[str], those: Counter[str]) -> str:
    return "; ".join(islice((price for price in these if these[price] != those[price]), MAX_CHANGES))


def _line_of(key: ChargeKey) -> str:
    """`acme, distance, zone port, window night`; `acme, fee Monthly rate`."""
    kind = "" if key.kind is ChargeKind.USAGE else key.kind.value
    # the terms of a fee follow its name
    kind += f" {key.price.partition(': ')[0]}" if key.kind is ChargeKind.FEE else ""
    zone, window = key.zone and f"zone {key.zone}", key.window and f"window {key.window_id}"
    return ", ".join(part for part in (key.account, kind, key.meter or "", zone, window) if part)


def _change(was_minor: int, now_minor: int, currency: str) -> str:
    more = "+" if now_minor > was_minor else ""
    change = amount_text(now_minor - was_minor, currency)
    return f"{amount_text(was_minor, currency)} -> {amount_text(now_minor, currency)} {currency} ({more}{change})"
