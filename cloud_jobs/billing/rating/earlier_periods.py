"""What the earlier periods of a contract year or week leave for the next one, and pools that several accounts share."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction

from cloud_jobs.billing.contracts import AccountContract, PayerContract, Pool, PoolKey, Span
from cloud_jobs.billing.rating.fees import AccountYear
from cloud_jobs.billing.rating.pools import (
    Place,
    PoolShare,
    PoolUses,
    RatedPrice,
    Uses,
    exact_shares,
    pool_shares,
    span_begin,
    split_exact,
)
from cloud_jobs.billing.units import round_ratio

# Pools with usage of earlier periods.


@dataclass(slots=True)
class PoolSoFar:
    """What a pool had in earlier periods: uses, and what they cost and had free, not rounded."""

    uses: Counter[tuple[RatedPrice, Place]] = field(default_factory=Counter)
    minor: Fraction = Fraction(0)
    free: Fraction = Fraction(0)

    def add(self, uses: Uses) -> list[PoolShare]:
        """The shares of the next period, whose uses come after those before: what all periods cost, rounded, less what
        those before cost. So none gives anything back, and together they are rounded once.
        """
        shares = exact_shares(uses, self.uses)
        minors, frees = [one.minor for one in shares.values()], [one.free for one in shares.values()]
        minor, free = sum(minors, self.minor), sum(frees, self.free)
        rounded = round_ratio(*minor.as_integer_ratio()) - round_ratio(*self.minor.as_integer_ratio())
        parts = split_exact(int(free) - int(self.free), frees), split_exact(rounded, minors)
        self.minor, self.free = minor, free
        self.uses.update(uses)
        return [
            PoolShare(*key, share.quantity, free_part, amount)
            for (key, share), free_part, amount in zip(shares.items(), *parts, strict=True)
        ]


OwnedPool = tuple[str, str, str, PoolKey, date | None]
"""Account (of a pool of accounts), tenant, device, pool, and its first day."""


class SharedPools:
    """Pools of a payer that have usage of several accounts or periods. Periods are rated in order."""

    def __init__(self) -> None:
        self._before: defaultdict[OwnedPool, PoolSoFar] = defaultdict(PoolSoFar)
        self._uses: defaultdict[OwnedPool, Counter[tuple[RatedPrice, Place]]] = defaultdict(Counter)
        self._ended = self._uses
        self._shares: dict[str, list[tuple[PoolKey, PoolShare]]] | None = None

    def add(
        self,
        contract: PayerContract,
        terms: AccountContract,
        use: tuple[RatedPrice, Place],
        day: date | None,
        quantity: int,
    ) -> None:
        """Adds a quantity of an account in the period of a contract. `day`: for a pool of a day or week."""
        pool, place = use[0].pool, use[1]
        # a device takes its pools along to another account of the payer
        account = terms.id if pool.scope is Pool.ACCOUNT else ""
        year, first = contract.year if pool.scope is Pool.TREE else terms.year, None
        device = (place.tenant, place.device) if pool.scope is Pool.DEVICE else ("", "")
        if pool.span is Span.YEAR:
            assert year is not None, "a contract with a pool of a year has contract years"
            first = year[0]
        elif pool.span is not Span.CYCLE:
            first = span_begin(pool.span, day)
        self._uses[account, *device, pool, first][use] += quantity

    def shares_of(self, account: str) -> list[tuple[PoolKey, PoolShare]]:
        """The shares of an account in the pools of the period, when all cells of the payer are added. Raises
        BillingError.
        """
        if self._shares is None:
            self._shares = defaultdict(list)
            for of, uses in self._uses.items():
                for share in pool_shares(uses) if of[3].span is Span.CYCLE else self._before[of].add(uses):
                    self._shares[share.place.account].append((of[3], share))
        return self._shares.get(account, [])

    def end_period(self) -> None:
        """The next period begins."""
        self._ended, self._uses = self._uses, defaultdict(Counter)
        self._shares = None

    def ended(self, account: str) -> Iterator[tuple[PoolKey, PoolUses]]:
        """The pools of the last period that has ended in which an account has a part."""
        for of, uses in self._ended.items():
            if any(place.account == account for _, place in uses):
                so_far = self._before.get(of, PoolSoFar())
                before = so_far.uses - uses
                cost = sum((one.minor for one in exact_shares(uses, before).values()), Fraction(0))
                yield of[3], PoolUses(uses, of[4], before, so_far.minor - cost if before else Fraction(0))


class EarlierPeriods:
    """What a payer's earlier periods leave for the next one; empty before the first."""

    def __init__(self) -> None:
        self.pools = SharedPools()
        self._years: defaultdict[tuple[str, date | None], AccountYear] = defaultdict(AccountYear)

    def year_of(self, terms: AccountContract) -> AccountYear:
        """The contract year so far of an account."""
        return self._years[terms.id, terms.year and terms.year[0]]
