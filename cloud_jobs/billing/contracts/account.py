"""Sellers, exchange rates, and accounts: who pays for which devices. A child's charges are on its parent's invoice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from cloud_jobs.billing.billing_period import Cycle
from cloud_jobs.billing.contracts.fields import (
    NEEDS_BUYERS_VAT_ID,
    NEWER_CURRENCIES,
    Address,
    Amount,
    AttributesOfDevice,
    Colour,
    Contract,
    Currency,
    Iban,
    Id,
    Language,
    Logo,
    Number,
    PaymentMeans,
    Percent,
    Text,
    TimeZone,
    Vat,
    VatId,
    WireName,
    decimals_of,
    has_check_digits,
    without_spaces,
)
from cloud_jobs.billing.contracts.prices import Fees, LocalDay, rival_fees
from cloud_jobs.billing.units import exponent
from cloud_jobs.lake.coverage import TenantDevice
from geo.reference.moments import Moment

# How documents are sent and paid: electronic addresses, contacts and means of payment.

_EAS: Final = """
0002 0007 0009 0037 0060 0088 0096 0097 0106 0130 0135 0142 0147 0151 0154 0158 0170 0177 0183 0184 0188 0190 0191 0192
0193 0194 0195 0196 0198 0199 0200 0201 0202 0203 0204 0205 0208 0209 0210 0211 0212 0213 0215 0216 0217 0218 0221 0225
0230 0235 0240 9910 9913 9914 9915 9918 9919 9920 9922 9923 9924 9925 9926 9927 9928 9929 9930 9931 9932 9933 9934 9935
9936 9937 9938 9939 9940 9941 9942 9943 9944 9945 9946 9947 9948 9949 9950 9951 9952 9953 9957 9959 AN AQ AS AU EM
"""
ADDRESS_SCHEMES: Final = frozenset(_EAS.split())
"""Electronic Address Schemes (BR-CL-25); Peppol has those of digits (PEPPOL-EN16931-CL008)."""

TRANSFERS: Final = frozenset({"30", "58"})
_DIRECT_DEBITS: Final = frozenset({"49", "59"})
_CARDS: Final = frozenset({"48", "54", "55"})


class Profile(StrEnum):
    """What a receiver of documents requires beside EN 16931."""

    PEPPOL = "peppol"
    XRECHNUNG = "xrechnung"


def _scheme(code: str) -> str:
    if code not in ADDRESS_SCHEMES:
        raise ValueError(
            f"no scheme {code!r} of electronic addresses (EN 16931, BR-CL-25); 9930 is a German VAT id, EM an e-mail"
        )
    return code


class Endpoint(Contract):
    """An electronic address (BT-34, BT-49)."""

    scheme: Annotated[str, AfterValidator(_scheme)]
    id: Text


class Contact(Contract):
    """Whom a buyer asks (BG-6)."""

    name: Text
    telephone: Annotated[Text, StringConstraints(pattern=r"[0-9].*[0-9].*[0-9]")] | None = None
    email: Annotated[Text, StringConstraints(pattern=r"^[^@\s]+@([^@.\s]+\.)+[^@.\s]+$")] | None = None


def _creditor_id(given: str) -> str:
    if not has_check_digits(given[7:] + given[:4]):
        raise ValueError(f"the check digits of the creditor id {given} are wrong; look for a mistyped sign")
    return given


class Payment(Contract):
    """How to pay an invoice. `means_code`: UNCL 4461, for instance 58 for a SEPA credit transfer.

    `creditor_id`: the seller's in direct debits (BT-90).
    """

    means_code: PaymentMeans
    iban: Iban | None = None
    bic: Annotated[str, StringConstraints(pattern=r"^[A-Z0-9]{8}([A-Z0-9]{3})?$")] | None = None
    creditor_id: (
        Annotated[
            str,
            BeforeValidator(without_spaces),
            StringConstraints(pattern=r"^[A-Z]{2}[0-9]{2}[A-Z0-9]{4,31}$"),
            AfterValidator(_creditor_id),
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _fits_a_document(self) -> Self:
        if self.means_code in _DIRECT_DEBITS:
            raise ValueError(
                f"{self.means_code} is a direct debit, which needs a mandate of each payer: add payer.direct_debit "
                "there and payment.creditor_id here, with the means_code of the other payers, for instance 58"
            )
        if self.means_code in _CARDS:
            raise ValueError(
                f"{self.means_code} is a payment by card, and documents have no card number (BT-87): "
                "use 58 with payment.iban, or 1 if the means is agreed elsewhere"
            )
        if self.means_code in TRANSFERS and self.iban is None:
            raise ValueError(f"means_code {self.means_code} is a transfer: add payment.iban (EN 16931, BR-61)")
        return self


class DirectDebit(Contract):
    """The payer's mandate (BT-89) and the account to debit (BT-91). `means_code`: 59 in SEPA, 49 elsewhere."""

    mandate: Text
    iban: Iban
    means_code: Literal["49", "59"] = "59"


# Who sells, and who pays. Canaries use a reserved tenant; no customer's account may contain their devices.

CANARY: Final = "canary"
"""The tenant of canary devices. Ids of canary accounts and sellers are `canary` or begin with `canary-`."""


def is_canary(name: str) -> bool:
    """Whether this is the id of a canary's account or seller."""
    return name == CANARY or name.startswith(f"{CANARY}-")


MOST_DECIMALS: Final = 2
"""Of an amount in EN 16931 (BR-DEC)."""


# Exchange rates.


class ExchangeRate(Contract):
    """One version of a rate: an amount in `currency` times `rate` is the amount in `into`.

    The id is both currencies, `usd-eur`, so that a pair has one rate at a time. `source`: who published the rate.
    """

    id: Id
    effective_from: Moment
    currency: Currency
    into: Currency
    rate: Annotated[Number, Field(gt=0)]
    source: Text

    @model_validator(mode="after")
    def _named_by_its_currencies(self) -> Self:
        if self.currency == self.into:
            raise ValueError(f"a rate is between two currencies, and both are {self.into}")
        if self.id != rate_id(self.currency, self.into):
            raise ValueError(
                f"the id of a rate from {self.currency} into {self.into} is {rate_id(self.currency, self.into)!r}, "
                f"not {self.id!r}"
            )
        return self


def rate_id(currency: str, into: str) -> str:
    return f"{currency}-{into}".lower()


# Sellers: the legal entities that issue invoices.


PaymentDays = Annotated[int, Field(ge=0, le=365, strict=True)]
"""Days from the date of an invoice until it is to be paid."""


class LegalEntity(Contract):
    """One version of a seller. `number_prefix` and a counter without gaps make the numbers of its documents.

    `logo`, `colour`: of its printed documents. `tax_currency`: in which its documents state the VAT a second time.
    """

    id: Id
    effective_from: Moment
    name: Text
    address: Address
    vat_id: VatId | None = None
    tax_registration_id: Text | None = None
    endpoint: Endpoint | None = None
    contact: Contact | None = None
    number_prefix: Annotated[str, StringConstraints(pattern=r"^[A-Z0-9][A-Z0-9-]{0,15}$")]
    payment: Payment
    payment_days: PaymentDays = 30
    tax_currency: Currency | None = None
    logo: Logo | None = None
    colour: Colour | None = None

    @model_validator(mode="after")
    def _known_to_the_tax_office(self) -> Self:
        if self.vat_id is None and self.tax_registration_id is None:
            raise ValueError("a seller needs a vat_id or a tax_registration_id: an invoice names one of them")
        return self


class DoubtBounds(Contract):
    """The doubts that a payer accepts for each device and period; beyond them a closing is provisional until a
    decision.

    `unreadable_percent`: unreadable messages by kind, and messages with a wrong clock. `unknown_percent`: driven
    time in gaps in which the device moved. `refused_percent`: positions that no track can use.
    """

    unreadable_percent: Percent = Decimal(1)
    unknown_percent: Percent = Decimal(5)
    refused_percent: Percent = Decimal(5)


class Payer(Contract):
    """The part of an account that gets invoices: one seller, currency and time zone for itself and its children.

    `language`: of printed documents; None: that of the seller's country, or English. `cycle`: the periods that are
    billed; None: any. `payment_days`: None: those of the seller. `profile`: None is EN 16931 alone. `cash_rounding`:
    the sum to pay is rounded to a multiple of it. `zero_documents`: whether a period without an amount is invoiced;
    None: if anything was charged.
    """

    legal_entity: Id
    currency: Currency
    time_zone: TimeZone
    address: Address
    vat: Vat
    vat_id: VatId | None = None
    profile: Profile | None = None
    endpoint: Endpoint | None = None
    buyer_reference: Text | None = None
    order_reference: Text | None = None
    direct_debit: DirectDebit | None = None
    language: Language | None = None
    cycle: Cycle | None = None
    payment_days: PaymentDays | None = None
    doubts: DoubtBounds = DoubtBounds()
    cash_rounding: Annotated[Amount, Field(gt=0)] | None = None
    zero_documents: bool | None = None

    @property
    def cash_unit_minor(self) -> int:
        return int(self.cash_rounding.scaleb(exponent(self.currency))) if self.cash_rounding else 1

    @model_validator(mode="after")
    def _rounded_to_units(self) -> Self:
        if self.cash_rounding and decimals_of(self.cash_rounding) > exponent(self.currency):
            raise ValueError(f"cash_rounding is {self.cash_rounding}, which is no amount of {self.currency}")
        return self

    @model_validator(mode="after")
    def _named_to_the_tax_office(self) -> Self:
        rule = NEEDS_BUYERS_VAT_ID.get(self.vat.category)
        if rule and self.vat_id is None:
            raise ValueError(f"VAT of category {self.vat.category} needs the payer's vat_id (EN 16931, {rule})")
        return self

    @model_validator(mode="after")
    def _fits_its_profile(self) -> Self:
        if self.profile is not None:
            if missing := ", ".join(missing_for_profile(self)):
                raise ValueError(f"profile {self.profile.value!r} needs {missing}")
            if self.currency in NEWER_CURRENCIES or exponent(self.currency) > MOST_DECIMALS:
                raise ValueError(f"profile {self.profile.value!r} has no documents in {self.currency}")
        return self


def missing_for_profile(payer: Payer, seller: LegalEntity | None = None) -> Iterator[str]:
    """The keys that the payer's profile needs and that are not there, with the rules; without a seller, the payer's."""
    if payer.profile is None:
        return
    # between Germans, Peppol has the rules of XRechnung too
    is_german = payer.profile is Profile.XRECHNUNG or (
        seller is not None and payer.address.country == seller.address.country == "DE"
    )
    needed: list[tuple[str, object, str]] = [(*_endpoint(payer, "payer", payer.profile), "PEPPOL-EN16931-R010")]
    if is_german:
        needed.append(("payer.buyer_reference", payer.buyer_reference, "BR-DE-15"))
        needed.append(("payer.address.postal_code", payer.address.postal_code, "BR-DE-9"))
    else:
        either = payer.buyer_reference or payer.order_reference
        needed.append(("payer.buyer_reference or payer.order_reference", either, "PEPPOL-EN16931-R003"))
    if seller is not None:
        needed.append((*_endpoint(seller, "legal_entity", payer.profile), "PEPPOL-EN16931-R020"))
    if seller is not None and is_german:
        contact = seller.contact
        needed += [
            ("legal_entity.contact.name", contact, "BR-DE-5"),
            ("legal_entity.contact.telephone", contact and contact.telephone, "BR-DE-6"),
            ("legal_entity.contact.email", contact and contact.email, "BR-DE-7"),
            ("legal_entity.address.postal_code", seller.address.postal_code, "BR-DE-4"),
        ]
    yield from (f"{key} ({rule})" for key, value, rule in needed if not value)


def _endpoint(of: Payer | LegalEntity, name: str, profile: Profile) -> tuple[str, bool]:
    given = of.endpoint
    if given is not None and profile is Profile.PEPPOL and not given.scheme.isdigit():
        return f"{name}.endpoint with a scheme of digits, not {given.scheme}", False
    return f"{name}.endpoint", given is not None


class Assignment(Contract):
    """A device that an account pays for, from `begin` until `end` (excluded; None: no end).

    `name`: what people call the vehicle, such as its number plate; documents print it beside the id. `attributes`: what
    prices depend on; another assignment of the device may state others.
    """

    tenant: WireName
    device: WireName
    region: WireName
    begin: Moment
    end: Moment | None = None
    name: Text | None = None
    attributes: AttributesOfDevice = Field(default_factory=dict)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end is not None and self.end <= self.begin:
            raise ValueError(
                f"device {self.device!r} ends at {self.end.isoformat()}, which is not after its begin, "
                f"{self.begin.isoformat()}"
            )
        return self

    @property
    def of_device(self) -> TenantDevice:
        return TenantDevice(self.tenant, self.device)


class Account(Contract):
    """One version of an account. It pays itself (`payer`), or its charges are on the invoice of its `parent`.

    It is in force until the next version, or until `effective_until` (excluded). After that nobody pays for its
    devices, unless a later version begins. `fees`: of this customer, beside those of its tariff. `year_begins`: the
    first day of a contract year, from which the payer's cycles are counted; None: that of the parent, or 1 January.
    """

    id: Id
    effective_from: Moment
    effective_until: Moment | None = None
    name: Text
    parent: Id | None = None
    payer: Payer | None = None
    tariff: Id
    year_begins: LocalDay | None = None
    fees: Fees = ()
    devices: tuple[Assignment, ...] = ()

    @model_validator(mode="after")
    def _somebody_pays(self) -> Self:
        if self.parent is not None and self.payer is not None:
            raise ValueError(f"it has a parent, {self.parent!r}, and a payer's part of its own; one of them pays")
        if self.parent is None and self.payer is None:
            raise ValueError("it has no payer: add a payer table or a parent")
        if self.parent == self.id:
            raise ValueError("it is its own parent")
        return self

    @model_validator(mode="after")
    def _each_fee_once(self) -> Self:
        for fault in rival_fees(self.fees):
            raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        if self.effective_until is not None and self.effective_until <= self.effective_from:
            raise ValueError(
                f"it ends at {self.effective_until.isoformat()}, which is not after {self.effective_from.isoformat()}"
            )
        return self

    @model_validator(mode="after")
    def _canaries_apart(self) -> Self:
        mine = is_canary(self.id)
        if any((one.tenant == CANARY) != mine for one in self.devices):
            raise ValueError(
                f"canary accounts ({CANARY!r}, {CANARY + '-'!r}...) have devices of the tenant {CANARY!r}, no others do"
            )
        if self.parent is not None and (mine or is_canary(self.parent)):
            raise ValueError(f"a canary account neither has nor is a parent ({self.parent!r})")
        if self.payer is not None and is_canary(self.payer.legal_entity) != mine:
            raise ValueError(f"only canary accounts have a canary seller ({self.payer.legal_entity!r})")
        return self

    @model_validator(mode="after")
    def _each_device_once_at_a_time(self) -> Self:
        if len({(one.tenant, one.device) for one in self.devices}) == len(self.devices):
            # most accounts, of which there are very many
            return self
        assigned = defaultdict[TenantDevice, list[Assignment]](list)
        for one in self.devices:
            assigned[one.of_device].append(one)
        for (tenant, device), ones in assigned.items():
            for before, after in pairwise(sorted(ones, key=lambda one: one.begin)):
                if before.end is None or before.end > after.begin:
                    raise ValueError(
                        f"device {device!r} of tenant {tenant!r} is assigned twice from {after.begin.isoformat()} on"
                    )
        return self
