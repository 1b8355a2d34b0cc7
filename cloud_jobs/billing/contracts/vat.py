"""The tax on what a payer is charged, and what EN 16931 asks of seller and buyer for it: by contract and document."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from cloud_jobs.billing.contracts.fields import Contract, Number, Text


class VatCategory(StrEnum):
    """UNCL 5305, as EN 16931 uses it."""

    STANDARD = "S"
    ZERO = "Z"
    EXEMPT = "E"
    REVERSE_CHARGE = "AE"
    INTRA_COMMUNITY = "K"
    EXPORT = "G"
    OUT_OF_SCOPE = "O"


NEEDS_SELLERS_VAT_ID: Final[Mapping[VatCategory, str]] = MappingProxyType(
    {VatCategory.INTRA_COMMUNITY: "BR-IC-02", VatCategory.EXPORT: "BR-G-02"}
)
"""The rule by which a seller needs a vat_id; for all other categories its tax_registration_id will do."""

NEEDS_BUYERS_VAT_ID: Final[Mapping[VatCategory, str]] = MappingProxyType(
    {VatCategory.REVERSE_CHARGE: "BR-AE-02", VatCategory.INTRA_COMMUNITY: "BR-IC-02"}
)
"""The rule by which a payer needs a vat_id."""


class Vat(Contract):
    """The tax on everything that a payer is charged. `rate` in per cent; above 0 for the category S alone."""

    category: VatCategory
    rate: Annotated[Number, Field(ge=0, le=100, max_digits=6, decimal_places=3)] = Decimal(0)
    exemption_reason: Text | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.category is VatCategory.STANDARD) != (self.rate > 0):
            raise ValueError(
                f"category {self.category} with a rate of {self.rate}: S has a rate above 0, all others have 0"
            )
        unexplained = self.category not in {VatCategory.STANDARD, VatCategory.ZERO}
        if unexplained != (self.exemption_reason is not None):
            raise ValueError(
                f"category {self.category} needs an exemption_reason, for instance 'Reverse charge'"
                if unexplained
                else f"category {self.category} has no exemption_reason"
            )
        return self
