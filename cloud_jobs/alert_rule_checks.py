"""Alert rules before they are published: accounts and places that there are, and versions that replace others. Pure.

A rule of an account that nobody published hears nothing, and one of a mistyped place hears of nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from geo.alerts import AlertRule, UnusableRule, usable_rule
from geo.alerts.rule import matches_place
from geo.reference.beginning import beginning
from geo.reference.in_force import publication_order
from waybill.settings import name_advice

__all__ = ["CheckedRules", "check_rules"]

MAX_LACKING: Final = 100
_KIND: Final = "alert_rule"
Row = dict[str, Any]


class CheckedRules(NamedTuple):
    """`lacking`: what rules need and is neither published nor stated; `notices`: what may be meant, or a slip."""

    lacking: list[str]
    notices: list[str]


def check_rules(published: Sequence[Row], stated: Sequence[Row]) -> CheckedRules:
    """Judges the rules of stated rows, each with its `place`, beside all rows of the table `reference`.

    Without any publication nobody knows which fences there are, and of them nothing is said.
    """
    # a rule that cannot be used has a fault of its own, named elsewhere
    rules = [(row, made) for row in stated if row["kind"] == _KIND and (made := _rule(row["body"]))]
    if not rules:
        return CheckedRules([], [])
    known = {kind: {row["id"] for row in (*published, *stated) if row["kind"] == kind} for kind in ("account", "fence")}
    lacking = [said for row, rule in rules for said in _lacking(row, rule, known, knows_fences=bool(published))]
    return CheckedRules(lacking[:MAX_LACKING], [*_replaced(published, [row for row, _ in rules])])


def _rule(body: str) -> AlertRule | None:
    try:
        return usable_rule(body).made
    except UnusableRule:
        return None


def _lacking(row: Row, rule: AlertRule, known: dict[str, set[str]], *, knows_fences: bool) -> Iterator[str]:
    if rule.account not in known["account"]:
        advice = name_advice(rule.account, known["account"])
        yield f"{_place(row)}: alert_rule {rule.id!r} is of account {rule.account!r}, which was not published{advice}"
    if not knows_fences and not known["fence"]:
        return
    for number, pattern in enumerate(rule.places):
        if not any(matches_place(pattern, one) for one in known["fence"]):
            advice = name_advice(pattern, known["fence"])
            yield (
                f"{_place(row, 'places', number)}: alert_rule {rule.id!r}: no fence or gate was published as "
                f"{pattern!r}{advice}"
            )


def _replaced(published: Sequence[Row], stated: Sequence[Row]) -> Iterator[str]:
    def version(row: Row) -> tuple[str, str]:
        return row["id"], beginning(_KIND, row["body"])

    bodies = {version(row): row["body"] for row in sorted(published, key=publication_order) if row["kind"] == _KIND}
    for row in stated:
        if bodies.get(version(row), row["body"]) != row["body"]:
            yield (
                f"{row['place']}: alert_rule {row['id']!r} from {version(row)[1]} is published with another content; "
                "this replaces it from that moment on"
            )


def _place(row: Row, *inner: str | int) -> str:
    return str(row["place_of"](*inner) if "place_of" in row else row["place"])
