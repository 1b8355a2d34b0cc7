"""The tax on what a payer is charged: rounded once for each category and rate."""

from __future__ import annotations

from cloud_jobs.billing.contracts import Vat
from cloud_jobs.billing.meters import round_ratio
from cloud_jobs.billing.rating.charges import TaxGroup


def tax_group(vat: Vat, taxable_minor: int) -> TaxGroup:
    """The tax on the sum of the charges that are of one category and rate (BR-CO-17)."""
    # the rate is in per cent: the product of integers over a hundred times the rate's denominator
    numerator, denominator = vat.rate.as_integer_ratio()
    return TaxGroup(
        category=vat.category,
        rate=vat.rate,
        exemption_reason=vat.exemption_reason,
        taxable_minor=taxable_minor,
        tax_minor=round_ratio(taxable_minor * numerator, 100 * denominator),
    )
