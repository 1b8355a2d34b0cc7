"""The invoice that the page about invoices shows."""

from __future__ import annotations

from cloud_jobs.billing.documents import Document
from cloud_jobs.billing.rating import ChargeKind
from cloud_jobs.billing.units import Meter
from tests.cloud_jobs.billing.documents.rated import charge, fixed, issued, taxed

LONDON = {"account": "acme-north", "region": "uk", "zone": "london", "price": "3.20 EUR/h"}


def example() -> Document:
    """Ten vehicles in a zone, with a cap, and one of a child's in another region."""
    return issued(
        taxed(
            [
                *(charge(device=f"eu-{number:04}", amount_minor=4515, quantity=100_333_000) for number in range(10)),
                fixed(-1500, ChargeKind.DAILY_CAP, region="eu", tenant="fleet", device="eu-0003"),
                charge(device="uk-0001", meter=Meter.DURATION, quantity=9_000_000, amount_minor=800, **LONDON),
                fixed(2500, ChargeKind.MINIMUM),
            ]
        )
    )
