"""Which invoices that stand ask, by contracts of before, for what other payers are to be asked for by those of now.

By the contracts of one commit each account and each device has one payer at a moment, so two payers are asked for one
only where an invoice was made by older contracts. Whoever it is of is adjusted first, or by the same command.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from deltalake import DeltaTable

from cloud_jobs.billing.billing_period import BillingPeriod, days_text
from cloud_jobs.billing.contracts import BlockedPayer, Contracts, UnknownPayer
from cloud_jobs.billing.contracts.versions import micros
from cloud_jobs.billing.errors import BadPeriod
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days, RegisterKey
from cloud_jobs.billing.register.errors import RegisterDamaged
from cloud_jobs.billing.register.ledger import BESIDE, PostedChange, PostedInvoice
from cloud_jobs.billing.register.newer_contracts import NewerContracts
from cloud_jobs.billing.register.outdated import outdated_closings
from cloud_jobs.billing.register.tables import Register

_PAIRS_AT_ONCE: Final = 1000


class Changes(Protocol):
    """What one closing changes of another one: see `documents_of.DocumentMaker`."""

    def load(self, closings: Collection[Closing]) -> None:
        """Makes ready what `change` needs of closings of one period. Raises RegisterDamaged, LakeError."""

    def change(self, before: Closing, after: Closing) -> PostedChange:
        """What a closing changes of another one that is posted."""


class AskedElsewhere(NamedTuple):
    """The invoice `number` of another payer (`holder`) asks for `what`, an account or a device, at some time."""

    holder: str
    number: str
    days: str
    what: str


class _Span(NamedTuple):
    """For what somebody is asked, from one moment until another (excluded; µs since 1970)."""

    what: str
    begin_us: int
    end_us: int


class InvoicesOfOthers:
    """The invoices that stand beside what is to be posted for some days."""

    def __init__(self, register: Register, days: Days, newer: NewerContracts, changes: Changes) -> None:
        self._register = register
        self._days = days
        self._newer = newer
        self._changes = changes

    def in_the_way(self, opened: DeltaTable, payers: Collection[str]) -> dict[str, list[AskedElsewhere]]:
        """Of each payer that is to wait for others the invoices of these, in a version of `documents`.

        Raises LakeError, StoreUnavailable, RegisterDamaged.
        """
        standing = [*self._unsettled(self._standing(opened))]
        asked: dict[str, list[tuple[_Span, AskedElsewhere]]] = defaultdict(list)
        for one in standing:
            key = one.invoice.key
            contracts = self._newer.before(self._newer.commit_of(one.rank[0]))
            days = days_text(key.first_day, key.last_day)
            for span in _spans(contracts, key.payer, (key.first_day, key.last_day)):
                asked[span.what].append((span, AskedElsewhere(key.payer, one.invoice.number, days, span.what)))
        found: dict[str, list[AskedElsewhere]] = {}
        commits = {self._newer.commit_of(one.rank[0]) for one in standing}
        for payer in sorted({*payers} & self._touched(commits)):
            # one invoice of another payer may be met by very many devices: the first says enough
            met: dict[tuple[str, str], AskedElsewhere] = {}
            for span in _spans(self._newer.now, payer, self._days):
                for other, elsewhere in asked.get(span.what, ()):
                    if payer != elsewhere.holder and span.begin_us < other.end_us and other.begin_us < span.end_us:
                        met.setdefault((elsewhere.holder, elsewhere.number), elsewhere)
            if met:
                found[payer] = [*met.values()]
        return found

    def _touched(self, commits: Collection[int]) -> set[str]:
        return {payer for commit in commits for payer in self._newer.given_away(commit)}

    def _standing(self, opened: DeltaTable) -> list[PostedInvoice]:
        """The invoices that ask for something at a time of the days, by contracts of before accounts were changed."""
        first, last = self._days[0] - BESIDE, self._days[1] + BESIDE
        posted = self._register.payers_by_snapshot(opened, first, last)
        by_commit: dict[int, set[str]] = defaultdict(set)
        for snapshot, names in posted.items():
            by_commit[self._newer.commit_of(snapshot)] |= names
        payers = {name for commit, names in by_commit.items() for name in names & self._touched([commit])}
        ledger, found = self._register.posted(opened, payers, first, last), []
        for payer in sorted(payers):
            try:
                standing = ledger.standing(payer)
            except RegisterDamaged:
                # it is refused when its turn comes
                continue
            # with a sum of nothing it asks for nothing
            found += [one for one in standing if one.net_minor or one.tax_minor]
        return found

    def _unsettled(self, standing: Sequence[PostedInvoice]) -> Iterator[PostedInvoice]:
        """Those of which it is not known that they ask for the same by the contracts of now."""
        by_days: dict[Days, list[PostedInvoice]] = defaultdict(list)
        for one in standing:
            if one.invoice.key.payer in self._touched([self._newer.commit_of(one.rank[0])]):
                by_days[one.invoice.key.first_day, one.invoice.key.last_day].append(one)
        for days, of_days in sorted(by_days.items()):
            for begin in range(0, len(of_days), _PAIRS_AT_ONCE):
                part = of_days[begin : begin + _PAIRS_AT_ONCE]
                settled = self._settled(days, part)
                yield from (one for one in part if one.invoice.key.payer not in settled)

    def _settled(self, days: Days, standing: Sequence[PostedInvoice]) -> set[str]:
        """Whose newest closing is by the contracts of now, and changes nothing of what is posted."""
        payers = [one.invoice.key.payer for one in standing]
        closings = self._register.closings(*days, payers)
        newest = {one.key.payer: one for one in closings}
        named = {one.in_register: one for one in closings}
        outdated = outdated_closings(self._register, days, self._newer, payers)
        pairs: list[tuple[Closing, Closing]] = []
        for one in standing:
            last, posted = newest.get(one.invoice.key.payer), named.get(RegisterKey(one.invoice.key.payer, one.closing))
            if last and posted and last.outcome is ClosingState.FINAL and last.key.payer not in outdated:
                pairs.append((posted, last))
        same = {posted.key.payer for posted, last in pairs if last.owes_as(posted)}
        return same | self._unchanged([pair for pair in pairs if pair[0].key.payer not in same])

    def _unchanged(self, pairs: Sequence[tuple[Closing, Closing]]) -> set[str]:
        try:
            self._changes.load([one for pair in pairs for one in pair])
        except RegisterDamaged:
            if len(pairs) == 1:
                return set()
            # of one of them; each by itself
            return {name for pair in pairs for name in self._unchanged([pair])}
        return {posted.key.payer for posted, last in pairs if self._changes.change(posted, last).is_empty}


def _spans(contracts: Contracts, payer: str, days: Days) -> Iterator[_Span]:
    """What a payer is asked for; nothing of one that pays for nothing, or with whom nothing clear was agreed."""
    try:
        contract = contracts.contract_of(payer, BillingPeriod(contracts.time_zone_of(payer), *days))
    except (BadPeriod, BlockedPayer, UnknownPayer):
        return
    begin, end = micros(contract.period.start), micros(contract.period.end)
    for account in contract.accounts:
        yield _Span(f"account {account.id}", begin, end)
    for one in contract.assigned:
        yield _Span(f"device {one.tenant}/{one.device}", one.begin_us, one.end_us)


def waiting(
    in_the_way: Mapping[str, Sequence[AskedElsewhere]], taken_back: Collection[str]
) -> dict[str, AskedElsewhere]:
    """Who cannot be posted, and for which invoice it waits; `taken_back`: whose invoices the same command changes.

    Whoever waits changes nothing itself, so that those wait, too, for whom its invoice is in the way. Pure.
    """
    behind: dict[str, list[str]] = defaultdict(list)
    for payer, others in in_the_way.items():
        for holder in {one.holder for one in others}:
            behind[holder].append(payer)
    found: dict[str, AskedElsewhere] = {}
    stuck = [holder for holder in behind if holder not in taken_back]
    while stuck:
        holder = stuck.pop()
        for payer in behind[holder]:
            if payer not in found:
                found[payer] = next(one for one in in_the_way[payer] if one.holder == holder)
                stuck.append(payer)
    return found
