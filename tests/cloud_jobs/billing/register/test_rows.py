"""Charges as rows of the register and back, and the digest over them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date
from hashlib import sha256
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.billing.rating import Charge
from cloud_jobs.billing.register import tables as rows
from cloud_jobs.billing.register.closing import PeriodKey
from tests.cloud_jobs.billing.documents.rated import charges

KEY = PeriodKey("waybill-eu", "acme", date(2026, 3, 1), date(2026, 3, 31))


def columns(made: list[Charge]) -> Iterator[list[Any]]:
    """What lines_digest is over: a list for each column of a charge, in the order of the table."""
    in_order = sorted(made, key=lambda one: one.key.order)
    keys, metered = [one.key for one in in_order], [one.metered for one in in_order]
    for name in ("account", "region", "tenant", "device", "kind", "meter", "zone", "window", "price"):
        yield [getattr(key, name) or "" for key in keys]
    for name in ("quantity", "free", "amount_minor"):
        yield [getattr(one, name) for one in in_order]
    yield [one and one.rows for one in metered]
    yield [one and one.first_hour.astimezone(UTC).isoformat() for one in metered]
    yield [one and one.last_hour.astimezone(UTC).isoformat() for one in metered]
    yield [one and one.digest for one in metered]


def stored_charges(*tables: pa.Table) -> tuple[Charge, ...]:
    return rows.charges_from(tables, [(KEY.payer, "run")])[KEY.payer, "run"]


@given(charges())
def test_charges_come_back_from_their_rows_in_the_order_of_their_keys(made: list[Charge]) -> None:
    stored = rows.charge_rows("run", [(KEY, rows.charge_columns(made))])
    assert stored_charges(stored, stored) == tuple(sorted(made, key=lambda one: one.key.order))
    assert stored.column("run").to_pylist() == ["run"] * len(made)


@given(charges(), st.randoms())
def test_the_digest_is_over_the_columns_whatever_the_order_of_the_rows(made: list[Charge], random: Random) -> None:
    text = "".join(json.dumps(column, ensure_ascii=False, separators=(",", ":")) for column in columns(made))
    random.shuffle(made)
    stored = stored_charges(rows.charge_rows("run", [(KEY, rows.charge_columns(made))]))
    assert rows.lines_digest(rows.charge_columns(stored)) == sha256(text.encode()).hexdigest()
