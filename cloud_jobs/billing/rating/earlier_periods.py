"""What the earlier periods of a contract year or week leave for the next one, and pools that several accounts share."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import date
from fractions import Fraction
from typing import NamedTuple

from cloud_jobs.billing.contracts import AccountContract, PayerContract, Pool, PoolKey, Span
from cloud_jobs.billing.rating.fees import AccountYear
from cloud_jobs.billing.rating.pools import (
    Place,
    PoolShare,
    RatedPrice,
    Uses,
    exact_shares,
    pool_shares,
    span_begin,
    split_exact,
)
from cloud_jobs.billing.units import round_ratio

# Pools with usage of earlier periods.


def shares_after(before: Uses, uses: Uses) -> Iterable[PoolShare]:
    """The shares of a period in a pool with uses before it: what all of them cost, less what those before cost.

    So the periods of a pool together cost what it costs at once. A period's amount, which is below 0 if more units make
    earlier ones cheaper, is divided as if the units before had come first.
    """
    if not before:
        return pool_shares(uses)
    together = {use: before.get(use, 0) + uses.get(use, 0) for use in {**before, **uses}}
    now, past = _rounded(together), _rounded(before)
    minor, free, shares = now.minor - past.minor, now.free - past.free, exact_shares(uses, before)
    weights = [share.minor for share in shares.values()]
    weights = weights if any(weights) else [Fraction(share.quantity) for share in shares.values()]
    whole = sum(weights, Fraction(0))
    amounts = split_exact(abs(minor), [abs(minor) * weight / whole for weight in weights])
    frees = split_exact(free, [share.free for share in shares.values()])
    return [
        PoolShare(*key, share.quantity, free_part, -amount if minor < 0 else amount)
        for (key, share), free_part, amount in zip(shares.items(), frees, amounts, strict=True)
    ]


class _Rounded(NamedTuple):
    minor: int
    free: int


def _rounded(uses: Uses) -> _Rounded:
    shares = [*exact_shares(uses).values()]
    minor = sum((share.minor for share in shares), Fraction(0))
    return _Rounded(round_ratio(*minor.as_integer_ratio()), int(sum((share.free for share in shares), Fraction(0))))


OwnedPool = tuple[str, str, str, PoolKey, date | None]
"""Account ("": all of the payer), tenant, device, pool, and its first day."""


class SharedPools:
    """Pools of a payer that have usage of several accounts or periods. Periods are rated in order."""

    def __init__(self) -> None:
        self._before: defaultdict[OwnedPool, Counter[tuple[RatedPrice, Place]]] = defaultdict(Counter)
        self._uses: defaultdict[OwnedPool, Counter[tuple[RatedPrice, Place]]] = defaultdict(Counter)
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
        of_tree = pool.scope is Pool.TREE
        account, year, first = ("", contract.year, None) if of_tree else (terms.id, terms.year, None)
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
                for share in shares_after(self._before.get(of, {}), uses):
                    self._shares[share.place.account].append((of[3], share))
        return self._shares.get(account, [])

    def end_period(self) -> None:
        """What was used is before the next period. A pool of a period is not continued."""
        for of, uses in self._uses.items():
            if of[3].span is not Span.CYCLE:
                self._before[of].update(uses)
        self._uses.clear()
        self._shares = None


class EarlierPeriods:
    """What a payer's earlier periods leave for the next one; empty before the first."""

    def __init__(self) -> None:
        self.pools = SharedPools()
        self._years: defaultdict[tuple[str, date | None], AccountYear] = defaultdict(AccountYear)

    def year_of(self, terms: AccountContract) -> AccountYear:
        """The contract year so far of an account."""
        return self._years[terms.id, terms.year and terms.year[0]]
