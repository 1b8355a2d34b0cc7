"""Whether a closing still matches the current contracts and decisions."""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import BlockedPayer, ContractFault, Contracts, PayerContract, UnknownPayer
from cloud_jobs.billing.contracts.published import MODEL_OF
from cloud_jobs.billing.errors import BadPeriod, BillingError
from cloud_jobs.billing.register.closing import Closing, Days
from cloud_jobs.billing.register.tables import digest_of
from cloud_jobs.lake.snapshot_reads import publications
from cloud_jobs.lake.snapshots import LakeState, snapshots
from cloud_jobs.lake.tables import Condition, Lake

MAX_FAULT_CHARACTERS: Final = 300
_PRICES: Final = ("tariff", "calendar", "legal_entity", "exchange_rate")


def agreed_with(contracts: Contracts, payer: str, days: Days) -> PayerContract | BillingError:
    """The contract of a payer for its local days, or why there is none."""
    try:
        return contracts.contract_of(payer, contracts.period_of(payer, *days))
    except (BadPeriod, BlockedPayer, UnknownPayer) as fault:
        return fault
    except MemoryError:
        raise
    except Exception as fault:  # noqa: BLE001, other payers can be billed
        period = BillingPeriod(contracts.zone_of_account(payer), *days)
        return BlockedPayer(payer, period, [ContractFault(program_fault(payer, fault), ("account", payer))])


def program_fault(payer: str, fault: Exception) -> str:
    """Why a payer cannot be billed that no contract explains. Logs the traceback."""
    # by the standard library, because executors write its lines to their log without any settings
    logging.getLogger(__name__).error("account %r cannot be billed", payer, exc_info=fault)
    named = f"{type(fault).__name__}: {str(fault)[:MAX_FAULT_CHARACTERS]}"
    return f"a fault of this program, not of the contract: {named}; report it with the traceback in the log"


def contracts_above(reference: pa.Table, accounts: Collection[str]) -> Contracts:
    """The contracts of some accounts and of their parents, from rows of the table `reference`."""
    asked = {*accounts, *Contracts(publications(reference, "account", accounts)).parents}
    prices = [row for kind in _PRICES for row in publications(reference, kind)]
    return Contracts([*publications(reference, "account", asked), *prices])


def contract_digest(contract: PayerContract | BillingError) -> str:
    return contract.digest if isinstance(contract, PayerContract) else digest_of(str(contract))


class CurrentContracts:
    """Decides whether closings must be made again. Raises LakeError."""

    def __init__(self, lake: Lake, state: LakeState | None = None) -> None:
        """`state`: compare with this state of the lake; None: with the newest."""
        self._lake, self._state = lake, state
        self._known: list[Condition] = [] if state is None else [("commit_number", "<=", state.reference_commit)]
        self._decided: list[Condition] = [] if state is None else [("number", "<=", state.decisions_number)]
        self._snapshots = {one.number: one for one in snapshots(lake)}
        self._digests: dict[tuple[str, Days], str] = {}

    def are_newer(self, snapshot: int) -> bool:
        """Whether contracts were published since a snapshot, or the snapshot is unknown."""
        return self._commit_of(snapshot) < self._newest_commit

    def fences_are_newer(self, snapshot: int) -> bool:
        """Whether a fence was published since a snapshot, the snapshot is unknown, or usage has other fences than
        then.
        """
        if self._commit_of(snapshot) < self._newest_fence:
            return True
        then = self._snapshots.get(snapshot)
        return then is not None and self._state is not None and then.usage_fences != self._state.usage_fences

    def contract(self, payer: str, days: Days) -> PayerContract | BillingError:
        return agreed_with(self._contracts, payer, days)

    def differ(self, closing: Closing) -> bool:
        """Whether a closing was made under another contract."""
        if not self.are_newer(closing.snapshot):
            return False
        asked = closing.key.payer, (closing.key.first_day, closing.key.last_day)
        if asked not in self._digests:
            self._digests[asked] = contract_digest(self.contract(*asked))
        return self._digests[asked] != closing.contract_digest

    def fault(self, closing: Closing) -> str:
        """Why a closing must be made again; "" if it need not."""
        if self.differ(closing):
            return "contracts were published since it was closed"
        withdrawn = self._withdrawn.intersection(closing.decisions)
        return f"decision {min(withdrawn)} was withdrawn since it was closed" if withdrawn else ""

    @cached_property
    def _contracts(self) -> Contracts:
        return Contracts(publications(self._lake.rows("reference", where=self._known)))

    @cached_property
    def _newest_commit(self) -> int:
        return self._newest_of([*MODEL_OF])

    @cached_property
    def _newest_fence(self) -> int:
        return self._newest_of(["fence"])

    def _commit_of(self, snapshot: int) -> int:
        """The newest commit of reference data that a snapshot contains; 0 if the snapshot is unknown."""
        return self._snapshots[snapshot].reference_commit if snapshot in self._snapshots else 0

    def _newest_of(self, kinds: list[str]) -> int:
        """The newest commit with a publication of these kinds; 0 if there is none."""
        where = [("kind", "in", kinds), *self._known]
        return pc.max(self._lake.rows("reference", ["commit_number"], where=where)["commit_number"]).as_py() or 0

    @cached_property
    def _withdrawn(self) -> frozenset[int]:
        return frozenset(self._lake.rows("decisions", ["withdraws"], where=self._decided)["withdraws"].to_pylist())
