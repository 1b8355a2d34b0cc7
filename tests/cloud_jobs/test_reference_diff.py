"""What files would change is named field by field, a thing of a list by its name."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.reference.checks import VersionDiff, changes, diffs
from cloud_jobs.reference.files import PlacedVersion, make_version
from tests.cloud_jobs.billing.contracts.makers import price, tariff
from tests.cloud_jobs.publications import rows_of

values = st.recursive(
    st.integers(0, 3) | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


def diff(before: list[dict[str, Any]], after: dict[str, Any], kind: Any = "tariff") -> VersionDiff:
    placed = PlacedVersion("x.toml:1", make_version(kind, after), lambda *_: "")
    (found,) = diffs(rows_of(kind, before), [placed])
    return found


@given(values, values)
def test_what_differs_is_named_and_what_is_the_same_is_not(before: Any, after: Any) -> None:
    assert [*changes({"x": before}, {"x": before})] == []
    if before != after:
        assert [*changes({"x": before}, {"x": after})]


def test_a_price_is_compared_with_that_of_its_meter_wherever_it_stands() -> None:
    before = tariff(price(), price("1", meter="entry", unit="each", zone="*"))
    after = tariff(price("2", meter="entry", unit="each", zone="*"), price())
    found = diff([before], after)
    assert (found.change, [str(one) for one in found.fields]) == (
        "replaced",
        ['prices[entry *].unit_amount: "1" -> "2"'],
    )


def test_a_version_is_new_follows_another_replaces_or_is_the_same() -> None:
    assert diff([], tariff()).change == "new"
    assert diff([tariff()], tariff()).change == "same"
    assert diff([tariff()], tariff(effective_from="2027-01-01T00:00:00Z")).change == "after another"
    assert diff([tariff()], tariff(currency="USD")).fields[0].path == "currency"
