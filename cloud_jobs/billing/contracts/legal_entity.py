"""Who sells: the legal entity that an invoice is of."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from cloud_jobs.billing.contracts.fields import Address, Contract, Iban, Id, PaymentMeans, Text, VatId
from geo.reference.moments import Moment


class Payment(Contract):
    """How an invoice is to be paid. `means_code`: UNCL 4461, for instance 58 for a SEPA credit transfer."""

    means_code: PaymentMeans
    iban: Iban
    bic: Annotated[str, StringConstraints(pattern=r"^[A-Z0-9]{8}([A-Z0-9]{3})?$")] | None = None


class LegalEntity(Contract):
    """One version of a seller. Its documents are numbered without gaps: `number_prefix` and a counter."""

    id: Id
    effective_from: Moment
    name: Text
    address: Address
    vat_id: VatId | None = None
    tax_registration_id: Text | None = None
    contact: Text | None = None
    number_prefix: Annotated[str, StringConstraints(pattern=r"^[A-Z0-9][A-Z0-9-]{0,15}$")]
    payment: Payment
    payment_days: int = Field(default=30, ge=0, le=365, strict=True)

    @model_validator(mode="after")
    def _known_to_the_tax_office(self) -> Self:
        if self.vat_id is None and self.tax_registration_id is None:
            raise ValueError("a seller needs a vat_id or a tax_registration_id: an invoice names one of them")
        return self
