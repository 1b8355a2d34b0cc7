"""Why a payer cannot be billed for a period, each reason by itself. Each blocks the payers that it names, and no other.

BillingError
├── BlockedPayer               what is raised: a payer, a period, and every reason
└── ContractFault              one reason
    ├── UnknownPayer           no such account, or one that another one pays for
    ├── OtherTimeZone          the period is of another time zone than the payer's
    ├── OtherZoneThanBefore    a version of a payer with another time zone than the first one
    ├── ChangesInsidePeriod    what must be one for a whole period is two
    ├── RefusedVersionUsed     a publication that the period would use cannot be used
    ├── AccountCycle           accounts that are each other's parents
    ├── MissingParent          an account whose parent is not there
    ├── TreeTooDeep            more levels of accounts than are followed
    ├── DeviceInTwoAccounts    two accounts would pay for one device at one moment
    ├── UnknownTariff          no tariff of that id was published
    ├── TariffNotInForce       a tariff whose first version begins after a device's
    ├── UnknownLegalEntity     no seller of that id, or none yet
    ├── SellerWithoutVatId     a VAT category for which the seller needs a VAT id
    ├── SharedNumberPrefix     two sellers would give two documents one number
    ├── MetersForgotten        a version of a tariff without a price that the one before has
    └── NoExchangeRate         a tariff in another currency, and no rate at the period's end
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar, Final

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.lake.coverage import TenantDevice
from geo.reference.in_force import RefusedVersion
from geo.reference.moments import stamp

MAX_NAMED: Final = 20
"""So many reasons stand in a message; `faults` has them all."""


class ContractFault(BillingError):
    """One reason for which nobody can say what a payer owes for a period.

    `is_lack`: something is not there, which may be published yet; else what is there contradicts itself.
    """

    is_lack: ClassVar[bool] = False


class BlockedPayer(BillingError):
    """A payer that cannot be billed for a period, with all reasons. Other payers can."""

    def __init__(self, payer: str, period: BillingPeriod, faults: Sequence[ContractFault]) -> None:
        rest = [f"and {len(faults) - MAX_NAMED} more reasons"] if len(faults) > MAX_NAMED else []
        named = "; ".join([*map(str, faults[:MAX_NAMED]), *rest])
        super().__init__(f"account {payer!r} cannot be billed for {period} ({period.time_zone}): {named}")
        self.faults = tuple(faults)


class UnknownPayer(ContractFault):
    """Nobody of this id gets invoices in the period."""

    is_lack = True

    def __init__(self, account: str, reason: str) -> None:
        super().__init__(f"account {account!r} {reason}")
        self.account = account


class OtherTimeZone(ContractFault):
    """A payer's period is of its own local days."""

    def __init__(self, payer: str, time_zone: str, given: str) -> None:
        super().__init__(f"account {payer!r} is billed in time zone {time_zone}, but the period is in {given}")


class OtherZoneThanBefore(ContractFault):
    """A payer has one time zone for good: where it changes, days overlap, or hours are in none."""

    def __init__(self, account: str, before: str, after: str, begin: datetime) -> None:
        super().__init__(
            f"account {account!r} is of {before}, and from {stamp(begin)} on it would be of {after}: its days would "
            "overlap or leave hours out; end its devices then, and begin a new account that has them from there on"
        )
        self.account = account


class ChangesInsidePeriod(ContractFault):
    """A parent, currency or seller is one for a whole period. A period may end where it changes."""

    def __init__(self, account: str, what: str, before: str, after: str, moment: datetime) -> None:
        super().__init__(
            f"the {what} of account {account!r} changes from {before} to {after} at {stamp(moment)}, in the period; "
            "let it change with a period, or at a local midnight, and bill the days before and after it by themselves"
        )
        self.account = account


class RefusedVersionUsed(ContractFault):
    """The period would use a publication that cannot be used; a later one of the same version corrects it."""

    def __init__(self, refused: RefusedVersion) -> None:
        super().__init__(f"{refused}; publish it again, corrected")


class AccountCycle(ContractFault):
    """Accounts that lead to each other and to no payer. `accounts`: each the child of the next."""

    def __init__(self, accounts: Sequence[str]) -> None:
        super().__init__(
            f"accounts are their own parents: {' -> '.join([*accounts, accounts[0]])}; one of them must pay"
        )
        self.accounts = tuple(accounts)


class MissingParent(ContractFault):
    """An account whose parent is not there for all of its time."""

    is_lack = True

    def __init__(self, account: str, parent: str, since: datetime) -> None:
        super().__init__(f"account {account!r} has the parent {parent!r}, which is not there at {stamp(since)}")
        self.account, self.parent = account, parent


class TreeTooDeep(ContractFault):
    """More levels below a payer than are followed."""

    def __init__(self, account: str, levels: int) -> None:
        super().__init__(f"account {account!r} is more than {levels} levels below its payer")
        self.account = account


class DeviceInTwoAccounts(ContractFault):
    """Two accounts would pay for one device at one moment."""

    def __init__(
        self, of_device: TenantDevice, accounts: tuple[str, str], begin: datetime, end: datetime | None
    ) -> None:
        until = f" until {stamp(end)}" if end else " on"
        super().__init__(
            f"device {of_device.device!r} of tenant {of_device.tenant!r} is in account {accounts[0]!r} and in account "
            f"{accounts[1]!r} from {stamp(begin)}{until}; end one of the two assignments"
        )
        self.accounts = accounts


class UnknownTariff(ContractFault):
    """No tariff of that id was published."""

    is_lack = True

    def __init__(self, account: str, tariff: str) -> None:
        super().__init__(f"account {account!r} has the tariff {tariff!r}, which was not published")
        self.account, self.tariff = account, tariff


class TariffNotInForce(ContractFault):
    """A device is assigned when the tariff has no version yet. Nothing is billed at zero in silence."""

    is_lack = True

    def __init__(self, account: str, tariff: str, begin: datetime, end: datetime) -> None:
        super().__init__(
            f"tariff {tariff!r} of account {account!r} has no version in force from {stamp(begin)} until {stamp(end)}, "
            "while a device is assigned"
        )
        self.account = account


class UnknownLegalEntity(ContractFault):
    """No seller of that id is in force at the period's end."""

    is_lack = True

    def __init__(self, payer: str, legal_entity: str) -> None:
        super().__init__(
            f"account {payer!r} buys of the legal entity {legal_entity!r}, which is not there by the period's end"
        )
        self.account, self.legal_entity = payer, legal_entity


class SellerWithoutVatId(ContractFault):
    """The payer's VAT category needs the VAT id of the seller, which has none at the period's end."""

    def __init__(self, payer: str, legal_entity: str, category: str, rule: str) -> None:
        super().__init__(
            f"account {payer!r} is charged VAT of category {category}, for which its seller, the legal entity "
            f"{legal_entity!r}, needs a vat_id (EN 16931, {rule})"
        )
        self.account, self.legal_entity = payer, legal_entity


class SharedNumberPrefix(ContractFault):
    """Legal entities count their documents apart, so with one prefix two documents would have one number."""

    def __init__(self, prefix: str, legal_entities: Sequence[str]) -> None:
        super().__init__(
            f"the legal entities {' and '.join(map(repr, legal_entities[:MAX_NAMED]))} have one number_prefix, "
            f"{prefix!r}: two documents would have one number; give each a prefix that no other one ever had"
        )
        self.legal_entities = tuple(legal_entities)


class MetersForgotten(ContractFault):
    """A meter that the version before sells, and of which this one says nothing, would be free in silence."""

    def __init__(self, tariff: str, meters: Sequence[str], begin: datetime) -> None:
        named = ", ".join(f'"{meter}"' for meter in meters)
        super().__init__(
            f"tariff {tariff!r} from {stamp(begin)} has no price for {', '.join(meters)}, which is sold until then: it "
            f"would be free in silence; give a price (0: it is free), or write not_sold = [{named}]"
        )
        self.tariff, self.begin = tariff, begin


class NoExchangeRate(ContractFault):
    """A tariff in another currency than the payer's, and no rate in force at the period's end."""

    is_lack = True

    def __init__(self, account: str, currency: str, into: str, rate_id: str) -> None:
        super().__init__(
            f"account {account!r} has prices in {currency}, is billed in {into}, and no exchange rate {rate_id!r} is "
            "in force at the period's end"
        )
        self.account = account
