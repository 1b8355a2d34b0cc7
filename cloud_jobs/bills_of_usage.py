"""What payers would owe by the usage that a lake has, and which invoices stand: for checking contracts. No bill comes
of it, and nothing is written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date

from cloud_jobs.billing.contracts import NetAndTax, PayerContract
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import (
    Cell,
    PriceBooks,
    RatingContract,
    cells_of_usage,
    rate,
    rated_columns,
    rating_contract,
)
from cloud_jobs.billing.register.close import payer_groups, usage_parts
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.lake.snapshots import LakeState, newest_state
from cloud_jobs.lake.tables import Lake


class LakeBills:
    """The bills of a lake as it is now, whether they are final or not. Everything raises LakeError, StoreUnavailable.

    `progress`: takes how many bills were compared, and of how many. `state`: of the lake; None: as it is now.
    """

    def __init__(self, lake: Lake, progress: Callable[[int, int], None], state: LakeState | None = None) -> None:
        self.progress = progress
        self._lake, self._state, self._books = lake, state or newest_state(lake), PriceBooks()

    def rated(self, contracts: Sequence[PayerContract]) -> list[NetAndTax | BillingError]:
        """What each payer owes for the period that all contracts are of, or why nobody can say."""
        found = dict[str, NetAndTax | BillingError]()
        for group in payer_groups(contracts, 1):
            found.update(zip((one.id for one in group), self._owed(group), strict=True))
        return [found[one.id] for one in contracts]

    def posted(self, payers: Collection[str], since: date) -> Mapping[str, Collection[tuple[date, date]]]:
        """Of some payers the days of the invoices that stand and have a day from `since` on."""
        stands: dict[str, dict[tuple[str, date, date], bool]] = defaultdict(dict)
        # those of one seller and period come in the order in which they were numbered
        for one in Register(self._lake).documents(payers, first_day=since):
            stands[one.key.payer][one.key.legal_entity, one.key.first_day, one.key.last_day] = not one.is_void
        return {payer: {key[1:] for key, is_so in of.items() if is_so} for payer, of in stands.items()}

    def _owed(self, contracts: Sequence[PayerContract]) -> list[NetAndTax | BillingError]:
        agreed = {one.id: rating_contract(one) for one in contracts}
        try:
            cells = self._cells(contracts, agreed)
            rated = (rate(one, cells[name], {}, self._books) for name, one in agreed.items())
            return [NetAndTax(one.net_minor, one.tax_minor) for one in rated]
        except BillingError as fault:
            if len(contracts) == 1:
                return [fault]
            # it is of one of them, and the others owe what they owe
            return [amount for one in contracts for amount in self._owed([one])]

    def _cells(
        self, contracts: Sequence[PayerContract], agreed: Mapping[str, RatingContract]
    ) -> Mapping[str, list[Cell]]:
        cells: dict[str, list[Cell]] = defaultdict(list)
        for part in usage_parts(self._lake, self._state, contracts, rated_columns(agreed.values())):
            of_part = [agreed[name] for name in part.payers]
            for name, found in zip(part.payers, cells_of_usage(of_part, part.rows), strict=True):
                cells[name] += found.cells
        return cells
