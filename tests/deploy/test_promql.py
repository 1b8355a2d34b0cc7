"""The names that are found in an expression are those of Prometheus's grammar."""

from __future__ import annotations

import pytest

from tests.deploy.promql import Named, Selector, named_in


def selector(metric: str, *labels: str) -> Selector:
    return Selector(metric, frozenset(labels))


@pytest.mark.parametrize(
    ("expression", "selectors", "labels"),
    [
        ("a_b == 0", [selector("a_b")], set()),
        ('a{x="1", y=~"a|b", z!="}"}', [selector("a", "x", "y", "z")], set()),
        ("sum by (x, le) (rate(a_bucket[5m]))", [selector("a_bucket")], {"x", "le"}),
        ("sum(rate(a[5m])) by (x)", [selector("a")], {"x"}),
        ("time() - a > 7 * 86400", [selector("a")], set()),
        (
            "(a > 1) and on (i, t) (b == 1 or b{t='u'} == 0)",
            [selector("a"), selector("b"), selector("b", "t")],
            {"i", "t"},
        ),
        ("a / ignoring (x) group_left (y) b offset 5m", [selector("a"), selector("b")], {"x", "y"}),
        ("histogram_quantile(0.99, sum(rate(a[$__rate_interval])))", [selector("a")], set()),
        ('label_replace(a == 0, "r", "waybill x", "", "")', [selector("a")], set()),
    ],
)
def test_metrics_matchers_and_grouping_are_found(expression: str, selectors: list[Selector], labels: set[str]) -> None:
    assert named_in(expression) == Named(tuple(selectors), frozenset(labels))
