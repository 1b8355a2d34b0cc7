"""Who pays for some devices, by the contracts: of all accounts only those are judged that name one, and those above."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import Contracts, DoubtBounds
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshot_reads import publications, reference_table
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Lake


class PayerOfDevices:
    """The contracts that a payer and some devices are named in, at a state of the lake. Raises LakeError."""

    def __init__(self, lake: Lake, state: LakeState, payer: str, devices: Collection[TenantDevice]) -> None:
        reference = reference_table(lake, state)
        accounts = reference.filter(pc.equal(reference["kind"], "account"))
        self._payer, self._devices = payer, devices
        # a publication that cannot be used names nobody: what one account says wrong holds up no other
        self._naming = _naming(accounts, devices)
        asked = {payer, *self._naming}
        self._contracts = Contracts(publications(accounts, "account", asked))
        while above := self._contracts.parents - asked:
            asked |= above
            self._contracts = Contracts(publications(accounts, "account", asked))

    def period(self, asked: BillingPeriod) -> BillingPeriod:
        """The days of a period by the payer's clocks. Raises BadPeriod, UnknownPayer."""
        return self._contracts.period_of(self._payer, asked.first_day, asked.last_day)

    def doubt_bounds(self, period: BillingPeriod) -> DoubtBounds:
        """How much of a device's period may be doubtful. Raises UnknownPayer."""
        return self._contracts.doubt_bounds(self._payer, period)

    def not_paid_for(self, period: BillingPeriod) -> dict[TenantDevice, str]:
        """Why those of the devices are not the payer's that neither it nor an account below it has in a period."""
        theirs = self._contracts.devices_paid_for(self._payer, period)
        if not (wrong := [one for one in self._devices if one not in theirs]):
            return {}
        payers = self._contracts.payers_of({("account", name) for name in self._naming})
        paid = {name: self._contracts.devices_paid_for(name, period) for name in payers}
        return {one: self._fault([name for name in payers if one in paid[name]], period) for one in wrong}

    def _fault(self, others: list[str], period: BillingPeriod) -> str:
        if others:
            return f"{self._payer!r} does not pay for it in {period}: {', '.join(map(repr, others))} does"
        return f"no account that {self._payer!r} pays for names it in {period}: look at tenant, device and payer"


def _naming(accounts: pa.Table, devices: Collection[TenantDevice]) -> set[str]:
    """The ids of the accounts in whose texts a device stands, however its name is escaped there."""
    spelled = {json.dumps(one.device, ensure_ascii=escaped) for one in devices for escaped in (True, False)}
    found = pc.match_substring_regex(accounts["body"], "|".join(map(re.escape, sorted(spelled))))
    return {*accounts.filter(found)["id"].to_pylist()}
