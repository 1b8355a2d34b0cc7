"""What payers would owe by the usage that a lake has: for checking contracts. No bill comes of it."""

from __future__ import annotations

from datetime import UTC, timedelta

import pyarrow as pa

from cloud_jobs.billing.contracts import PayerContract, Rated
from cloud_jobs.billing.rating import PriceBooks, cells_of_usage, rate, rating_contract
from cloud_jobs.lake.tables import Lake

_HOUR = timedelta(hours=1)


def rated_by_usage(lake: Lake) -> Rated:
    """Rates a contract on the usage rows of its devices and period as they are now, whether they are final or not.

    It raises BillingError for usage that cannot be priced, LakeError.
    """
    books = PriceBooks()

    def net_minor(contract: PayerContract) -> int:
        agreed = rating_contract(contract)
        (used,) = cells_of_usage([agreed], _usage(lake, contract))
        return rate(agreed, used.cells, used.metered, books).net_minor

    return net_minor


def _usage(lake: Lake, contract: PayerContract) -> pa.Table:
    """Of the hours that have a quarter in the period. Rows of other devices of these names are passed over later."""
    start, end = contract.period.start.astimezone(UTC), contract.period.end.astimezone(UTC)
    moments = pa.timestamp("us", tz="UTC")
    return lake.rows(
        "usage",
        where=[
            ("tenant", "in", pa.array(sorted({one.tenant for one in contract.assigned}), pa.string())),
            ("device", "in", pa.array(sorted({one.device for one in contract.assigned}), pa.string())),
            ("hour", ">", pa.scalar(start - _HOUR, moments)),
            ("hour", "<", pa.scalar(end, moments)),
        ],
    )
