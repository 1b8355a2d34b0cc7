"""Charges as rows of the register and back, and the digest over them."""

from __future__ import annotations

import json
import random
from datetime import UTC, date
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given

from cloud_jobs.billing.rating import Charge
from cloud_jobs.billing.register import rows
from cloud_jobs.billing.register.closing import PeriodKey
from tests.cloud_jobs.billing.documents.rated import charge, charges

KEY = PeriodKey("waybill-eu", "acme", date(2026, 3, 1), date(2026, 3, 31))


def values(one: Charge) -> dict[str, Any]:
    """As the page about the register says it: what lines_digest is over."""
    key, metered = one.key, one.metered
    return {
        **{name: getattr(key, name) for name in ("account", "region", "tenant", "device", "zone", "window", "price")},
        "kind": key.kind.value,
        "meter": "" if key.meter is None else key.meter.value,
        **{name: getattr(one, name) for name in ("quantity", "free", "amount_minor")},
        "rows": metered and metered.rows,
        "digest": metered and metered.digest,
        "first_hour": metered and metered.first_hour.astimezone(UTC).isoformat(),
        "last_hour": metered and metered.last_hour.astimezone(UTC).isoformat(),
    }


@given(charges())
def test_charges_come_back_from_their_rows_in_the_order_of_their_keys(made: list[Charge]) -> None:
    stored = rows.charge_rows(KEY, "run", made)
    assert rows.charges_from(stored) == tuple(sorted(made, key=lambda one: one.key))
    assert stored.column("run").to_pylist() == ["run"] * len(made)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_digest_is_over_one_list_however_many_pieces_it_is_made_of(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [charge(f"van-{number}", amount_minor=number) for number in range(count)]
    text = json.dumps([values(one) for one in made], ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    random.Random(1).shuffle(made)
    monkeypatch.setattr(rows, "_AT_ONCE", 2)
    assert rows.lines_digest(made) == sha256(text.encode()).hexdigest()
