"""What holds of every bill."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.billing import (
    Bill,
    LineKey,
    Period,
    SeqRanges,
    Tariff,
    UsageRow,
    adjustment,
    adjustment_document,
    bill,
    bill_document,
    read_bill,
    to_html,
    to_json,
)
from tests.cloud_jobs.billing.strategies import (
    CURRENCIES,
    LONG_AFTER,
    MARCH,
    ZONES,
    account,
    tariff_versions,
    usage_rows,
)

FIRST, SECOND = datetime(2026, 4, 1, tzinfo=UTC), datetime(2026, 4, 9, tzinfo=UTC)


def made(tariffs: list[Tariff], usage: list[UsageRow], as_of: datetime = LONG_AFTER, period: Period = MARCH) -> Bill:
    payer = account(tariffs[0].currency)
    return bill(payer, tariffs, usage, period=period, as_of=as_of, completeness={})


any_tariffs = st.sampled_from(CURRENCIES).flatmap(tariff_versions)
first_usage = usage_rows(FIRST)


def worth(bill: Bill) -> dict[LineKey, tuple[int, int, SeqRanges]]:
    return {line.key: (line.quantity, line.amount_minor, line.seq_ranges) for line in bill.lines}


@given(any_tariffs, first_usage)
def test_the_lines_add_up_to_the_total_and_the_regions_do_too(tariffs: list[Tariff], usage: list[UsageRow]) -> None:
    found = made(tariffs, usage)
    assert sum(line.amount_minor for line in found.lines) == found.total_minor
    assert sum(found.totals_by_region.values()) == found.total_minor


@given(any_tariffs, first_usage, st.randoms(use_true_random=False))
def test_the_order_of_the_input_changes_no_byte(tariffs: list[Tariff], usage: list[UsageRow], random: object) -> None:
    before = bill_document(made(tariffs, usage))
    random.shuffle(usage)  # type: ignore[attr-defined]
    random.shuffle(tariffs)  # type: ignore[attr-defined]
    after = bill_document(made(tariffs, usage))
    assert to_json(after) == to_json(before)
    assert to_html(after) == to_html(before)


@given(any_tariffs, first_usage)
def test_a_row_delivered_twice_counts_once(tariffs: list[Tariff], usage: list[UsageRow]) -> None:
    assert made(tariffs, usage + usage) == made(tariffs, usage)


@given(any_tariffs, first_usage, usage_rows(SECOND))
def test_what_was_issued_and_its_adjustment_make_the_later_bill(
    tariffs: list[Tariff], early: list[UsageRow], late: list[UsageRow]
) -> None:
    issued, revised = made(tariffs, early + late, as_of=FIRST), made(tariffs, early + late, as_of=SECOND)
    change = adjustment(issued, revised)
    posted = {line.key: (line.quantity, line.amount_minor) for line in issued.lines}
    for line in change.lines:
        quantity, amount = posted.get(line.key, (0, 0))
        posted[line.key] = (quantity + line.quantity, amount + line.amount_minor)
        assert line.service_period == MARCH
    assert {key: value for key, value in posted.items() if value != (0, 0)} == {
        line.key: (line.quantity, line.amount_minor) for line in revised.lines
    }
    assert issued.total_minor + change.total_minor == revised.total_minor
    assert to_json(adjustment_document(change)) == to_json(adjustment_document(adjustment(issued, revised)))


@given(any_tariffs, first_usage, usage_rows(SECOND))
def test_what_is_computed_later_does_not_change_an_issued_bill(
    tariffs: list[Tariff], early: list[UsageRow], late: list[UsageRow]
) -> None:
    issued = made(tariffs, early, as_of=FIRST)
    assert to_json(bill_document(made(tariffs, early + late, as_of=FIRST))) == to_json(bill_document(issued))


@given(any_tariffs, first_usage, st.integers(1, 31 * 24 - 1))
def test_the_parts_of_a_period_add_up_in_quantity_and_seq_ranges(
    tariffs: list[Tariff], usage: list[UsageRow], hours: int
) -> None:
    middle = MARCH.start + timedelta(hours=hours)
    parts = [made(tariffs, usage, period=Period(*edges)) for edges in ((MARCH.start, middle), (middle, MARCH.end))]
    added: dict[LineKey, tuple[int, SeqRanges]] = {}
    for part in parts:
        for line in part.lines:
            quantity, seq_ranges = added.get(line.key, (0, SeqRanges()))
            added[line.key] = (quantity + line.quantity, SeqRanges.union([seq_ranges, line.seq_ranges]))
    whole = {line.key: (line.quantity, line.seq_ranges) for line in made(tariffs, usage).lines}
    assert added == whole


@given(any_tariffs, first_usage)
def test_no_line_is_about_nothing_or_about_others(tariffs: list[Tariff], usage: list[UsageRow]) -> None:
    found = made(tariffs, usage)
    mine = {vehicle.device for vehicle in found.account.vehicles}
    for line in found.lines:
        assert line.quantity > 0
        assert line.seq_ranges
        assert line.key.device in mine
    assert [line.number for line in found.lines] == list(range(1, len(found.lines) + 1))


@given(any_tariffs, first_usage, st.sampled_from(ZONES))
def test_rows_of_nothing_leave_the_bill_alone(tariffs: list[Tariff], usage: list[UsageRow], zone: str) -> None:
    taken = {row.key for row in usage}
    zeros = [
        UsageRow(
            tenant="fleet", device="eu-0001", hour=MARCH.start + timedelta(hours=hour), zone=zone, computed_at=FIRST
        )
        for hour in range(48)
    ]
    assert made(tariffs, usage + [row for row in zeros if row.key not in taken]) == made(tariffs, usage)


@given(any_tariffs, first_usage)
def test_the_json_of_a_bill_is_the_bill(tariffs: list[Tariff], usage: list[UsageRow]) -> None:
    found = made(tariffs, usage)
    back = read_bill(to_json(bill_document(found)))
    assert worth(back) == worth(found)
    assert to_json(bill_document(back)) == to_json(bill_document(found))
