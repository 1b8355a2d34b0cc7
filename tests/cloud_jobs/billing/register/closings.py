"""Closings to issue, of payers whose charges are given as amounts by key."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta

from cloud_jobs.billing.register.closing import Closing, ClosingState, PeriodKey
from cloud_jobs.billing.register.ledger import PostedChange

NOW = datetime(2026, 6, 1, 9, 30, tzinfo=UTC)
MARCH = PeriodKey("waybill-eu", "acme", date(2026, 3, 1), date(2026, 3, 31))


def closing_of(
    key: PeriodKey = MARCH,
    charges: Mapping[str, int] | None = None,
    *,
    snapshot: int = 1,
    number: int | None = None,
    outcome: ClosingState = ClosingState.FINAL,
    reasons: tuple[str, ...] = (),
    currency: str = "EUR",
) -> Closing:
    charges = {"a": 900} if charges is None else charges
    net = sum(charges.values())
    return Closing(
        key=key,
        snapshot=snapshot,
        snapshot_id=f"{snapshot}-abc",
        number=snapshot if number is None else number,
        run=f"run{snapshot if number is None else number}",
        outcome=outcome,
        reasons=reasons,
        period_start=datetime(key.first_day.year, key.first_day.month, key.first_day.day, tzinfo=UTC),
        period_end=datetime(key.last_day.year, key.last_day.month, key.last_day.day, tzinfo=UTC) + timedelta(days=1),
        time_zone="Europe/Berlin",
        number_prefix=f"{key.legal_entity.upper()}-",
        currency=currency,
        net_minor=net,
        tax_minor=net // 5,
        charges=len(charges),
        taxes="[]",
        lines_digest="",
        body_digest="",
        certificates_digest="",
        control_totals="{}",
        parties="{}",
    )


def change_between(before: Mapping[str, int], after: Mapping[str, int]) -> PostedChange:
    """What `after` adds to `before`."""
    differences = {key: after.get(key, 0) - before.get(key, 0) for key in {*before, *after}}
    tax = sum(after.values()) // 5 - sum(before.values()) // 5
    empty = not tax and not any(differences.values())
    return PostedChange(net_minor=sum(differences.values()), tax_minor=tax, is_empty=empty)
