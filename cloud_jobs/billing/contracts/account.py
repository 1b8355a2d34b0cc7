"""Who pays, and for which devices from when until when. Accounts are a tree: children roll up to the payer."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from cloud_jobs.billing.contracts.fields import Address, Contract, Id, Moment, Name, Text
from cloud_jobs.lake.coverage import TenantDevice


class VatCategory(StrEnum):
    """UNCL 5305, as EN 16931 uses it."""

    STANDARD = "S"
    ZERO = "Z"
    EXEMPT = "E"
    REVERSE_CHARGE = "AE"
    INTRA_COMMUNITY = "K"
    EXPORT = "G"
    OUT_OF_SCOPE = "O"


class Vat(Contract):
    """The tax on everything that a payer is charged. `rate` in per cent; above 0 for the category S alone."""

    category: VatCategory
    rate: Annotated[Decimal, Field(ge=0, le=100, max_digits=6, decimal_places=3, allow_inf_nan=False)] = Decimal(0)
    exemption_reason: Text | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.category is VatCategory.STANDARD) != (self.rate > 0):
            raise ValueError("a rate above 0 goes with category S, and with no other")
        unexplained = self.category not in {VatCategory.STANDARD, VatCategory.ZERO}
        if unexplained != (self.exemption_reason is not None):
            raise ValueError("categories other than S and Z need an exemption_reason, S and Z have none")
        return self


class Payer(Contract):
    """What an account has that gets invoices: one seller, one currency, one time zone for itself and its children."""

    legal_entity: Id
    currency: str
    time_zone: str
    address: Address
    vat: Vat
    vat_id: Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}[A-Z0-9]{2,13}$")] | None = None
    buyer_reference: Text | None = None


class Assignment(Contract):
    """A device that an account pays for, from a moment on until another (excluded; None: for good)."""

    tenant: Name
    device: Name
    region: Name
    begin: Moment
    end: Moment | None = None

    @property
    def of_device(self) -> TenantDevice:
        """Which device it is."""
        return TenantDevice(self.tenant, self.device)


class Account(Contract):
    """One version of an account. It pays itself (`payer`), or its charges stand on the invoice of its `parent`."""

    id: Id
    effective_from: Moment
    name: Text
    parent: Id | None = None
    payer: Payer | None = None
    tariff: Id
    devices: tuple[Assignment, ...] = ()

    @model_validator(mode="after")
    def _somebody_pays(self) -> Self:
        if (self.parent is None) == (self.payer is None):
            raise ValueError("an account has either a payer's part, or a parent that pays")
        return self
