"""What the check says of stated versions beside published ones."""

import json
from datetime import UTC, datetime
from typing import Any

from cloud_jobs.billing.contracts.check import check_contracts
from tests.cloud_jobs.billing.contracts.makers import account, device, kind_of, legal_entity, rows, tariff

MOMENT = datetime(2026, 4, 10, tzinfo=UTC)
WHOLE = (legal_entity(), tariff(), account("acme", device()), account("beta", device("van-2"), tariff="other"))
PUBLISHED = rows(*WHOLE, tariff(id="other"))


def checked(*bodies: dict[str, Any], published: Any = PUBLISHED) -> Any:
    stated = [{"kind": kind_of(body), "id": body["id"], "body": json.dumps(body), "place": "f:1"} for body in bodies]
    return check_contracts(published, stated, MOMENT)
