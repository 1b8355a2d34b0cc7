"""What the check says of stated versions beside published ones, with bills as simple as they can be."""

import json
from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime
from typing import Any

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import NetAndTax, PayerContract
from cloud_jobs.billing.contracts.check import check_contracts
from cloud_jobs.billing.errors import BillingError
from tests.cloud_jobs.billing.contracts.makers import account, device, kind_of, legal_entity, rows, tariff

MOMENT = datetime(2026, 4, 10, tzinfo=UTC)
WHOLE = (legal_entity(), tariff(), account("acme", device()), account("beta", device("van-2"), tariff="other"))
PUBLISHED = rows(*WHOLE, tariff(id="other"))


class HundredUnits:
    """Bills of a hundred units of each device at the first price in force; what is posted is said."""

    def __init__(self, **posted: str) -> None:
        self._posted = {
            payer: [BillingPeriod.parse(text, "UTC") for text in texts.split()] for payer, texts in posted.items()
        }
        self.rated_payers: list[str] = []
        self.compared: list[tuple[int, int]] = []

    def rated(self, contracts: Sequence[PayerContract]) -> list[NetAndTax | BillingError]:
        self.rated_payers += [one.id for one in contracts]
        return [self._owed(one) for one in contracts]

    def posted(self, payers: Collection[str], since: date) -> dict[str, list[tuple[date, date]]]:
        return {
            payer: [(one.first_day, one.last_day) for one in found if one.last_day >= since]
            for payer, found in self._posted.items()
            if payer in payers
        }

    def progress(self, done: int, whole: int) -> None:
        self.compared.append((done, whole))

    @staticmethod
    def _owed(contract: PayerContract) -> NetAndTax:
        amount = contract.accounts[0].spans[0].tariff.prices[0].unit_amount
        assert amount is not None
        net = int(amount * 100 * 100) * len(contract.devices)
        return NetAndTax(net, int(net * contract.payer.vat.rate / 100))


def checked(*bodies: dict[str, Any], published: Any = PUBLISHED, bills: HundredUnits | None = None) -> Any:
    stated = [{"kind": kind_of(body), "id": body["id"], "body": json.dumps(body), "place": "f:1"} for body in bodies]
    return check_contracts(published, stated, MOMENT, bills or HundredUnits())
