"""The usage charges of many payers at once, in columns: those that `AccountRating` makes of the same cells.

A price is looked up once for all cells alike, and pools of one price without tiers and steps are rounded and split as
arrays. `pool_shares` rates every other pool, and payers with daily caps or earlier periods are rated cell by cell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloud_jobs.billing.contracts import PayerContract, Pool, Span
from cloud_jobs.billing.contracts.fields import Attributes
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating.cells_of_usage import METERS, CellColumns, Ints, Slot
from cloud_jobs.billing.rating.charges import Charge, ChargeKey, ChargeKind
from cloud_jobs.billing.rating.pools import MissingFactor, Place, PriceBook, PriceBooks, RatedPrice, pool_shares
from cloud_jobs.billing.units import WITHOUT_ZONE, Meter
from cloud_jobs.lake.schemas import WHOLE_DEVICE

UsageCharges = Mapping[str, Sequence[Charge]]
"""The usage charges of accounts, in the order of their keys."""
_CHARGED_ALONE: Final = -1
"""Instead of a price: its payer is rated cell by cell."""
_NOT_SOLD: Final = -2
_MOST: Final = 2.0**60
"""No integer of a pool in columns is larger, so 64 bits are exact."""
_MOST_QUOTIENT: Final = 2.0**50
"""A quotient of floats below it is at most 2 off."""


def charges_in_columns(
    contracts: Sequence[PayerContract], cells: CellColumns, books: PriceBooks
) -> Mapping[int, UsageCharges]:
    """The usage charges of payers by number, without those that must be rated cell by cell."""
    pricing = _Pricing(contracts, cells, books)
    pools = _pools(pricing.uses(cells), pricing)
    staged = [share for at in np.flatnonzero(~pools.is_flat).tolist() for share in _other_shares(pools, at, pricing)]
    more = np.array(staged, np.int64).reshape(-1, len(_Shares._fields)).T
    shares = _Shares(*(np.concatenate(both) for both in zip(_flat_shares(pools), more, strict=True)))
    # a pool above the last tier is an error of its payer, which is found again cell by cell
    kept = pricing.is_plain[pricing.seat_payer[shares.seat]]
    shares = _of_one_key(_Shares(*(column[kept] for column in shares)))
    found: dict[int, dict[str, Sequence[Charge]]] = {number: {} for number in np.flatnonzero(pricing.is_plain).tolist()}
    charges = _charges(shares, cells, pricing, pools.columns)
    account = [*map(itemgetter(0, 1), pricing.seats.at(shares.seat))]
    for (payer, name), of in groupby(zip(account, charges, strict=True), key=itemgetter(0)):
        found[payer][name] = [charge for _, charge in of]
    return found


class _Ranked:
    """Texts by their rank; the numbers of charges are ordered as their texts are."""

    def __init__(self, texts: Iterable[Any]) -> None:
        self.texts = sorted({*texts})
        self.rank = {text: at for at, text in enumerate(self.texts)}

    def of(self, texts: Iterable[Any]) -> Ints:
        return np.array([self.rank[text] for text in texts], np.int64)

    def at(self, ranks: Ints) -> Iterable[Any]:
        return map(self.texts.__getitem__, ranks.tolist())


class _Uses(NamedTuple):
    """Cells by price: `owner` tells the accounts or devices of pools apart."""

    owner: Ints
    seat: Ints
    zone: Ints
    price: Ints
    quantity: Ints


class _Pricing:
    """The prices of cells. `is_plain`: of each payer, whether columns give its charges.

    `seats`: account, region and device of each payer, in the order of charges; zones are numbered in their order, too.
    """

    def __init__(self, contracts: Sequence[PayerContract], cells: CellColumns, books: PriceBooks) -> None:
        self.is_plain = np.ones(len(contracts), np.bool_)
        self.prices: list[RatedPrice] = []
        self._numbers: dict[RatedPrice, int] = {}
        self._books: dict[tuple[int, str], PriceBook] = {}
        for number, contract in enumerate(contracts):
            try:
                of = {terms.id: books.book(terms.spans, contract) for terms in contract.accounts}
            except BillingError:
                of, self.is_plain[number] = {}, False
            by_day = any(any(book.capped_by_day) for book in of.values())
            if contract.earlier or by_day or any(terms.has_dated_percents for terms in contract.accounts):
                self.is_plain[number] = False
            self._books.update(((number, account), book) for account, book in of.items())
        held = [*zip(cells.payer_of.tolist(), cells.holders, strict=True)]
        self.seats = _Ranked((payer, one.account, one.region, one.tenant, one.device) for payer, one in held)
        self.seat_of = self.seats.of((payer, one.account, one.region, one.tenant, one.device) for payer, one in held)
        self.seat_payer = np.array([seat[0] for seat in self.seats.texts], np.int64)
        self.seat_owner = np.zeros(len(self.seats.texts), np.int64)
        self.seat_owner[self.seat_of] = cells.owner_of
        self.zones = _Ranked(cells.zones)

    def uses(self, cells: CellColumns) -> _Uses:
        """The cells of plain payers that have a price."""
        payer, price = cells.payer_of[cells.holder], self._prices_of(cells)
        self.is_plain[payer[price == _CHARGED_ALONE]] = False
        at = np.flatnonzero((price >= 0) & self.is_plain[payer])
        holder, price = cells.holder[at], price[at]
        # an account's number is above that of all owners of devices
        is_shared = np.array([one.pool.scope is Pool.ACCOUNT for one in self.prices], np.bool_)[price]
        owner = np.where(is_shared, cells.account_of[holder] + len(cells.owners), cells.owner_of[holder])
        zone = self.zones.of(cells.zones)[cells.zone[at]]
        return _Uses(owner, self.seat_of[holder], zone, price, cells.quantity[at])

    def _prices_of(self, cells: CellColumns) -> Ints:
        """The number of each cell's price."""
        numbers: dict[tuple[int, Any], int] = {}
        books = list[tuple[PriceBook | None, Attributes]]()
        of_holder = []
        for payer, one in zip(cells.payer_of.tolist(), cells.holders, strict=True):
            book = self._books.get((payer, one.account)) if self.is_plain[payer] else None
            number = numbers.setdefault((id(book), one.attributes), len(books))
            if number == len(books):
                books.append((book, one.attributes))
            of_holder.append(number)
        sizes = len(cells.slots), len(METERS), len(cells.zones)
        code = np.array(of_holder, np.int64)[cells.holder]
        for column, size in zip((cells.slot, cells.meter, cells.zone), sizes, strict=True):
            code = code * size + column
        alike, of = np.unique(code, return_inverse=True)
        places = np.unravel_index(alike, (len(books) + 1, *sizes))
        found = [
            self._price(books[number], cells.slots[slot], METERS[meter], cells.zones[zone])
            for number, slot, meter, zone in zip(*(place.tolist() for place in places), strict=True)
        ]
        return np.array(found, np.int64)[of]

    def _price(self, pricing: tuple[PriceBook | None, Attributes], slot: Slot, meter: Meter, zone: str) -> int:
        book, attributes = pricing
        if book is None or slot.version < 0:
            return _CHARGED_ALONE
        try:
            price = book.price(slot.version, meter, zone, slot.window, attributes)
        except MissingFactor:
            return _CHARGED_ALONE
        if price is None:
            return _CHARGED_ALONE if book.sells(slot.version, meter) else _NOT_SOLD
        if price.pool.scope is Pool.TREE or price.pool.span is not Span.CYCLE:
            return _CHARGED_ALONE
        if price not in self._numbers:
            self._numbers[price] = len(self.prices)
            self.prices.append(price)
        return self._numbers[price]


class _Shares(NamedTuple):
    """What charges have: numbers of the seat, meter, zone, window, price and tax, and the amounts."""

    seat: Ints
    meter: Ints
    zone: Ints
    window: Ints
    text: Ints
    tax: Ints
    quantity: Ints
    free: Ints
    amount: Ints


class _PriceColumns:
    """What pools need of each price, by its number."""

    def __init__(self, prices: Sequence[RatedPrice]) -> None:
        self.windows, self.texts = _Ranked(one.window for one in prices), _Ranked(one.text for one in prices)
        self.taxes = _Ranked(one.tax for one in prices)
        self.window = self.windows.of(one.window for one in prices)
        self.text, self.tax = self.texts.of(one.text for one in prices), self.taxes.of(one.tax for one in prices)
        self.meter = np.array([METERS.index(one.pool.meter) for one in prices], np.int64)
        pools: dict[Any, int] = {}
        self.pool = np.array([pools.setdefault(one.pool, len(pools)) for one in prices], np.int64)
        alike: dict[Any, int] = {}
        terms = ((one.terms, one.text, one.tax) for one in prices)
        self.alike = np.array([alike.setdefault(one, len(alike)) for one in terms], np.int64)
        flat = [(*one.flat, *one.allowance) if one.flat else (0, 0, 0, 0) for one in prices]
        flat = [one if one[1] > 0 and max(one) < _MOST else (0, 0, 0, 0) for one in flat]
        self.flat = np.array(flat, np.int64).reshape(-1, 4)


class _Pools(NamedTuple):
    """Uses in the order of pools and of their places, with the first use of each pool and of each place in it."""

    uses: _Uses
    begin: Ints
    place: Ints
    is_flat: NDArray[np.bool_]
    columns: _PriceColumns

    def of_pool(self, at: int) -> slice:
        return slice(self.begin[at], self.begin[at + 1] if at + 1 < len(self.begin) else len(self.uses.seat))


def _begins(*columns: Ints) -> Ints:
    """The first row of each run of equal rows."""
    count = len(columns[0])
    changes = np.ones(count, np.bool_)
    changes[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(changes)


def _pools(use: _Uses, pricing: _Pricing) -> _Pools:
    columns = _PriceColumns(pricing.prices)
    pool = use.owner * (int(columns.pool.max(initial=0)) + 1) + columns.pool[use.price]
    order = np.lexsort((columns.window[use.price], use.zone, use.seat, pool))
    use, pool = _Uses(*(column[order] for column in use)), pool[order]
    begin = _begins(pool)
    place = _begins(pool, use.seat, use.zone, columns.window[use.price])
    if not len(begin):
        return _Pools(use, begin, place, np.zeros(0, np.bool_), columns)
    alike, whole = columns.alike[use.price], np.add.reduceat(use.quantity, begin).astype(np.float64)
    is_one = np.minimum.reduceat(alike, begin) == np.maximum.reduceat(alike, begin)
    numerator, denominator, allowance, per = columns.flat[use.price[begin]].T.astype(np.float64)
    # bounds of all integers of a pool: paid units, exact amount, and what divides the parts
    most = np.maximum.reduce(
        [whole * per * np.maximum(numerator, 1), allowance, per * denominator * np.maximum(whole, 2)]
    )
    quotient = np.maximum(whole * numerator / np.maximum(denominator, 1), whole)
    return _Pools(use, begin, place, is_one & (denominator > 0) & (most < _MOST) & (quotient < _MOST_QUOTIENT), columns)


def _flat_shares(pools: _Pools) -> _Shares:
    """`pool_shares` of all flat pools: with prices that are alike, without tiers and steps."""
    use, columns = pools.uses, pools.columns
    of = np.searchsorted(pools.begin, pools.place, side="right") - 1
    kept = pools.is_flat[of]
    # the places of flat pools, and their quantities
    place, of = pools.place[kept], of[kept]
    if not len(place):
        return _Shares(*(of,) * len(_Shares._fields))
    quantity, first = np.add.reduceat(use.quantity, pools.place)[kept], _begins(of)
    whole, price = np.add.reduceat(quantity, first), use.price[place]
    numerator, denominator, allowance, per = columns.flat[price[first]].T
    # as `RatedPrice.exact_minor`, `RatedPrice.free_of` and `round_ratio`
    exact, below = np.maximum(whole * per - allowance, 0) * numerator, per * denominator
    amount, free = (2 * exact + below) // (2 * below), np.minimum(whole, allowance // per)
    return _Shares(
        use.seat[place],
        columns.meter[price],
        use.zone[place],
        columns.window[price],
        columns.text[price],
        columns.tax[price],
        quantity,
        split_columns(free, np.minimum(whole * per, allowance), per * whole, quantity, of),
        split_columns(amount, exact, below * whole, quantity, of),
    )


def split_columns(whole: Ints, numerator: Ints, denominator: Ints, weights: Ints, of: Ints) -> Ints:
    """`split` of many totals: the parts `weights * numerator / denominator` of each total, by largest remainder.

    `of`: the total of each weight, ascending. A denominator is the exact amount's times the sum of the weights, below
    2**60, and a total is below 2**50.
    """
    first = _begins(of)
    of = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(of))))
    top, bottom = numerator[of], denominator[of]
    # The product may need 128 bits. Of the quotient by floats, which is at most 2 off, the rest is small, and so exact
    # in 64 bits that overflow.
    part = (weights.astype(np.float64) * top / bottom).astype(np.int64)
    more, rest = np.divmod(weights * top - part * bottom, bottom)
    part += more
    left = whole - np.add.reduceat(part, first)
    order = np.lexsort((np.arange(len(of)), -rest, of))
    part[order] += np.arange(len(of)) - first[of] < left[of]
    return part


def _other_shares(pools: _Pools, pool: int, pricing: _Pricing) -> list[tuple[int, ...]]:
    """The shares of a pool with several terms, tiers or steps; none if it is an error of its payer."""
    uses: defaultdict[tuple[RatedPrice, Place], int] = defaultdict(int)
    numbers: dict[Place, tuple[int, int]] = {}
    columns, of_pool = pools.columns, pools.of_pool(pool)
    _, seats, zones, prices, quantities = (column[of_pool].tolist() for column in pools.uses)
    for seat, zone, number, quantity in zip(seats, zones, prices, quantities, strict=True):
        price = pricing.prices[number]
        place = Place._make((*pricing.seats.texts[seat][1:], pricing.zones.texts[zone], price.window))
        numbers[place] = seat, zone
        uses[price, place] += quantity
    try:
        shares = [*pool_shares(uses)]
    except BillingError:
        pricing.is_plain[pricing.seat_payer[seats[0]]] = False
        return []
    windows, texts, taxes, meter = (
        columns.windows.rank,
        columns.texts.rank,
        columns.taxes.rank,
        int(columns.meter[prices[0]]),
    )
    return [
        (numbers[at][0], meter, numbers[at][1], windows[at.window], texts[text], taxes[tax], *amounts)
        for at, text, tax, *amounts in shares
    ]


def _of_one_key(shares: _Shares) -> _Shares:
    """The shares in the order of charges, those of one charge added up: two pools may have prices of one text."""
    if not len(shares.seat):
        return shares
    order = np.lexsort(shares[5::-1])
    columns = [column[order] for column in shares]
    first = _begins(*columns[:6])
    return _Shares(*(column[first] for column in columns[:6]), *(np.add.reduceat(one, first) for one in columns[6:]))


def _charges(shares: _Shares, cells: CellColumns, pricing: _Pricing, columns: _PriceColumns) -> Iterator[Charge]:
    has_no_zone = np.array([meter in WITHOUT_ZONE for meter in METERS], np.bool_)[shares.meter]
    zone_of = np.argsort(pricing.zones.of(cells.zones))
    zone = np.where(has_no_zone, cells.zones.index(WHOLE_DEVICE), zone_of[shares.zone])
    number = pricing.seat_owner[shares.seat] * len(cells.zones) + zone
    at = np.searchsorted(cells.metered_at, number)
    at[np.append(cells.metered_at, -1)[at] != number] = len(cells.metered)
    metered = [*cells.metered, None]
    _, *seats = (np.array([seat[of] for seat in pricing.seats.texts], object)[shares.seat] for of in range(5))
    keys = map(
        ChargeKey,
        *seats,
        repeat(ChargeKind.USAGE),
        map(METERS.__getitem__, shares.meter.tolist()),
        pricing.zones.at(shares.zone),
        columns.windows.at(shares.window),
        columns.texts.at(shares.text),
        columns.taxes.at(shares.tax),
    )
    amounts = (column.tolist() for column in shares[6:])
    return map(Charge, keys, *amounts, map(metered.__getitem__, at.tolist()))
