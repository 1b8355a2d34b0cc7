"""Fees and the dearest of several facts, read from what contracts state."""

from collections.abc import Iterable
from datetime import date
from fractions import Fraction
from typing import Any, NamedTuple

from simulator.truth.contracts import Stated, day_of, number_of
from simulator.truth.shapes import TruthError


class AgreedFee(NamedTuple):
    """An amount, or per cent of the usage of some meters and zones (empty: all), for the days from `begin` to `end`.

    `in_currency`: that of the tariff; "" is the payer's.
    """

    id: str
    name: str
    amount: Fraction | None
    percent: Fraction | None
    scope: str
    every: str
    proration: str
    begin: date
    end: date
    meters: tuple[str, ...]
    zones: tuple[str, ...]
    in_currency: str


def fees_of(stated: Iterable[Stated], currency: str) -> list[AgreedFee]:
    """`currency`: that of their tariff; "" is the payer's. Raises TruthError."""
    return [_fee(one, currency) for one in stated]


def _fee(body: dict[str, Any], currency: str) -> AgreedFee:
    amount, percent = body.get("amount"), body.get("percent")
    if body.get("devices") or body.get("vat"):
        raise TruthError("the truth knows fees of all devices, with the payer's tax")
    return AgreedFee(
        body["id"],
        body["name"],
        None if amount is None else number_of(amount),
        None if percent is None else number_of(percent),
        body.get("scope", "account"),
        body.get("every", "period"),
        body.get("proration", "by_day"),
        day_of(body.get("begin"), date.min),
        day_of(body.get("end"), date.max),
        tuple(body.get("meters", ())),
        tuple(body.get("zones", ())),
        currency,
    )


class AgreedDearest(NamedTuple):
    """Of the facts of some meters and zones (empty: all) within `minutes` of the first, the dearest is paid."""

    minutes: Fraction
    meters: tuple[str, ...]
    zones: tuple[str, ...]


def dearest_of(stated: Iterable[Stated]) -> list[AgreedDearest]:
    return [
        AgreedDearest(number_of(one["minutes"]), tuple(one.get("meters", ())), tuple(one.get("zones", ())))
        for one in stated
    ]
