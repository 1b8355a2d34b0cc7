"""Why a payer cannot be billed for a period. Each fault blocks the payers that it concerns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Final

from cloud_jobs.billing.billing_period import BillingPeriod, Cycle
from cloud_jobs.billing.errors import BillingError
from geo.reference.moments import stamp

MAX_NAMED: Final = 20
"""The most reasons in one message; `faults` has all of them."""

Named = tuple[str, str]
"""Kind and id of a contract."""


class ContractFault(BillingError):
    """One reason why a payer cannot be billed for a period.

    `about`: the contracts that it concerns. `missing`: the contract that was not published. `is_lack`: something is not
    there and may still be published; otherwise published versions contradict each other.
    """

    def __init__(self, text: str, *about: Named, missing: Named | None = None, is_lack: bool = False) -> None:
        super().__init__(text)
        self.about = about
        self.missing = missing
        self.is_lack = is_lack or missing is not None


class UnknownPayer(ContractFault):
    """The account gets no invoice in the period."""

    def __init__(self, account: str, reason: str) -> None:
        super().__init__(f"account {account!r} {reason}", ("account", account), is_lack=True)


class OtherCycle(ContractFault):
    """The period is none of the payer's cycle. `is_part`: it is a part of one, so nothing is due yet."""

    def __init__(
        self, account: str, cycle: Cycle, period: BillingPeriod, periods: Sequence[str], *, is_part: bool
    ) -> None:
        named = ", ".join(periods[:MAX_NAMED]) + (
            f" and {len(periods) - MAX_NAMED} more" if periods[MAX_NAMED:] else ""
        )
        super().__init__(
            f"account {account!r} is billed by {cycle}, and {period} is none of its periods; close {named} instead, "
            "or write another cycle into its payer",
            ("account", account),
        )
        self.is_part = is_part


class CalendarEnds(ContractFault):
    """The holidays or seasons of some days of the period are not known."""

    def __init__(self, tariff: str, calendar: str, until: date) -> None:
        super().__init__(
            f"tariff {tariff!r} has windows with holidays or seasons of calendar {calendar!r}, which is known until "
            f"{until} (excluded); publish a version with later dates, or with a later until",
            *(("tariff", tariff), ("calendar", calendar)),
            is_lack=True,
        )


class BlockedPayer(BillingError):
    """A payer that cannot be billed for a period, with all reasons. Other payers can."""

    def __init__(self, payer: str, period: BillingPeriod, faults: Sequence[ContractFault]) -> None:
        rest = [f"and {len(faults) - MAX_NAMED} more reasons"] if len(faults) > MAX_NAMED else []
        named = "; ".join([*map(str, faults[:MAX_NAMED]), *rest])
        super().__init__(f"account {payer!r} cannot be billed for {period} ({period.time_zone}): {named}")
        self.faults = tuple(faults)


def changes_in_period(account: str, what: str, before: str, after: str, moment: datetime) -> ContractFault:
    """A parent, currency or seller that changes within a period."""
    return ContractFault(
        f"the {what} of account {account!r} changes from {before} to {after} at {stamp(moment)}, in the period; "
        "let it change with a period, or at a local midnight, and bill the days before and after it by themselves",
        ("account", account),
    )


def meters_forgotten(tariff: str, meters: Sequence[str], begin: datetime) -> ContractFault:
    """A meter that the previous version sells and this version does not mention."""
    named = ", ".join(f'"{meter}"' for meter in meters)
    return ContractFault(
        f"tariff {tariff!r} from {stamp(begin)} has no price for {', '.join(meters)}, which is sold until then: it "
        f"would be free without notice; give a price (0: it is free), or write not_sold = [{named}]",
        ("tariff", tariff),
    )
