"""Prices, caps, fees and minimums as text, which identifies charges: written of terms, and taken apart into them.

A text has one head and then other terms, each of a template of this module. Documents say each term in their language.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from cloud_jobs.billing.contracts import ANY_ZONE, Cap, Fee, NamedPool, Pool, Price, Span, Window
from cloud_jobs.billing.contracts.fields import Attributes, factor_of, selector_text
from cloud_jobs.billing.contracts.prices import Every
from cloud_jobs.billing.units import Meter, exponent

NAME: Final = {"name": "{name}: "}
HEADS: Final = {
    "of_step": "{amount} {currency} per started {quantity} {unit}",
    "of_stay": "{amount} {currency} for each visit",
    "of_unit": "{amount} {currency}/{unit}",
    "graduated": "graduated {tiers} {currency}/{unit}",
    "volume": "volume {tiers} {currency}/{unit}",
    "cap_day_device": "at most {amount} {currency} a day for each device",
    "cap_day_account": "at most {amount} {currency} a day for the account",
    "cap_period_device": "at most {amount} {currency} a period for each device",
    "cap_period_account": "at most {amount} {currency} a period for the account",
    "cap_year_device": "at most {amount} {currency} a year for each device",
    "cap_year_account": "at most {amount} {currency} a year for the account",
    "minimum_period": "at least {amount} {currency} a period",
    "minimum_year": "at least {amount} {currency} a year",
    "fee_period": "{amount} {currency} a period",
    "fee_once": "{amount} {currency} once",
    "fee_percent": "{amount} % of {meters}",
}
TERMS: Final = {
    "factors": "{factors}",
    "all_meters": " (all meters)",
    "meters": " ({meters})",
    "step": ", in started steps of {quantity} {unit}",
    "free": ", the first {quantity} {unit} free",
    "visit": ", for each visit",
    "most": ", at most {amount} {currency}",
    "forward": ", forward",
    "backward": ", backward",
    "after": ", after gate {gate} within {minutes} minutes",
    "pooled_account": ", pooled by account",
    "pooled_tree": ", pooled by all accounts",
    "pool": ", pool {pool}",
    "by_day": ", by day",
    "by_week": ", by week",
    "by_year": ", by year",
    "device": ", for each device",
    "days": ", {days} of {all} days",
    "limited": ", limited to what was charged",
    "zones": ", only {zones}",
    "windows": ", in window {windows}",
    "devices": ", for {devices}",
    "dearest": ", the dearest within {minutes} minutes",
    "vat_included": ", VAT included",
}
MAX_NAMES: Final = 3
"""The most names of prices that a cap is called by."""
_TEMPLATES: Final = NAME | HEADS | TERMS
_NUMBER: Final = r"\d+(?:\.\d+)?"
_TIER: Final = rf"{_NUMBER}(?: to {_NUMBER})?"
_FACTS: Final = {
    "name": r"[^:]*(?::(?! )[^:]*)*",
    "amount": rf"-?{_NUMBER}",
    "currency": "[A-Z]{3}",
    "unit": r"\w+",
    "tiers": rf"{_TIER}(?:, {_TIER})*",
    "factors": rf"(?: x {_NUMBER} \([a-z0-9._-]+\))+",
    "meters": "[a-z, ]+",
    "quantity": _NUMBER,
    **dict.fromkeys(("minutes", "days", "all"), r"\d+"),
}
"""Patterns of facts; the others are any text."""


class Term(NamedTuple):
    """A part of a text, and its facts."""

    key: str
    facts: dict[str, str]


@lru_cache(maxsize=4096)
def terms_of(text: str) -> tuple[Term, ...]:
    """The terms of a text; () for one that is not of this module."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return ()
    return tuple(
        Term(key, {fact: found[f"{key}__{fact}"] for fact in _facts_of(template)})
        for key, template in _TEMPLATES.items()
        if found[key] is not None
    )


def _facts_of(template: str) -> Iterable[str]:
    return [fact for _, fact, _, _ in string.Formatter().parse(template) if fact]


def _pattern(key: str, template: str) -> str:
    parts = (
        re.escape(text) + (f"(?P<{key}__{fact}>{_FACTS.get(fact, '.+?')})" if fact else "")
        for text, fact, _, _ in string.Formatter().parse(template)
    )
    return f"(?P<{key}>{''.join(parts)})"


_TEXT: Final = re.compile(
    "".join(f"{_pattern(*of)}?" for of in NAME.items())
    + f"(?:{'|'.join(_pattern(*of) for of in HEADS.items())})"
    + "".join(f"{_pattern(*of)}?" for of in TERMS.items())
)


def unit_of(text: str) -> str:
    """The unit of a price; "" for none."""
    return next((facts["unit"] for _, facts in terms_of(text) if "unit" in facts), "")


def name_of(text: str) -> str:
    """The name of a price or a fee; "" for none."""
    return next((facts["name"] for key, facts in terms_of(text) if key == "name"), "")


def said(key: str, facts: Mapping[str, object] = MappingProxyType({}), **more: object) -> str:
    """The text of one term."""
    return _TEMPLATES[key].format(**facts, **more)


def number_text(value: Decimal, digits: int = 0) -> str:
    """A number without trailing zeros, but with at least `digits` digits after the point: 0.50, 0.4567, 100."""
    whole, _, fraction = f"{value:f}".partition(".")
    fraction = fraction.rstrip("0").ljust(digits, "0")
    return f"{whole}.{fraction}" if fraction else whole


def price_text(price: Price, currency: str, pool: NamedPool | None = None, attributes: Attributes | None = None) -> str:
    """`0.45 EUR/km`; `graduated 0.50 to 100, 0.30 EUR/km, the first 50 km free, pooled by account, pool km, by year`.

    `1.50 EUR per started 30 min, the first 15 min free, for each visit`; `7.00 EUR for each visit`;
    `1.00 EUR/each, forward, after gate north within 30 minutes`. `pool`: None: its own.
    `0.0228 CHF/km x 40 (weight), for class hgv`. `attributes`: those of the device; None: only the names of factors.
    """
    digits, of_unit = exponent(currency), {"currency": currency, "unit": price.unit}
    if price.tiers:
        tiers = (
            number_text(tier.unit_amount, digits) + ("" if tier.up_to is None else f" to {number_text(tier.up_to)}")
            for tier in price.tiers
        )
        head = said(price.tier_mode.value, of_unit, tiers=", ".join(tiers))
    elif price.step_amount is not None:
        quantity = number_text(price.step or Decimal(0))
        head = said(
            "of_step" if price.step else "of_stay",
            of_unit,
            amount=number_text(price.step_amount, digits),
            quantity=quantity,
        )
    else:
        amount = (
            f"{len(price.amounts)} amounts" if price.unit_amount is None else number_text(price.unit_amount, digits)
        )
        head = said("of_unit", of_unit, amount=amount)
    factors = ""
    for name in price.times:
        number = factor_of(attributes, name) if attributes is not None else None
        factors += f" x {name}" if number is None else f" x {number_text(number)} ({name})"
    pool = pool or price.own_pool
    terms = (
        factors,
        price.step and price.step_amount is None and said("step", quantity=number_text(price.step), unit=price.unit),
        pool.allowance and said("free", quantity=number_text(pool.allowance), unit=pool.unit),
        price.meter is Meter.STAY and (price.step_amount is None or price.step) and said("visit"),
        price.most is not None and said("most", amount=number_text(price.most, digits), currency=currency),
        price.direction and said(price.direction.value),
        price.after and said("after", gate=price.after, minutes=price.within),
        pool.scope is not Pool.DEVICE and said(f"pooled_{pool.scope}"),
        pool.id and said("pool", pool=pool.id),
        pool.span is not Span.CYCLE and said(f"by_{pool.span}"),
        price.devices and said("devices", devices=selector_text(price.devices)),
    )
    name = said("name", name=price.name) if price.name else ""
    return name + head + "".join(term for term in terms if term)


def cap_text(cap: Cap, currency: str, windows: Iterable[Window] = (), prices: Iterable[Price] = ()) -> str:
    """`at most 5.00 EUR a day for each device (distance, duration), only port, in window night (mon-sun 22:00-06:00)`.

    `windows`, `prices`: of the tariff. A cap has the names of its prices, if all have one and they are few.
    """
    names = {price.name or "" for price in prices if cap.covers(price.meter, price.zone, price.window)}
    name = said("name", name=", ".join(sorted(names))) if names and all(names) and len(names) <= MAX_NAMES else ""
    hours = "; ".join(window.name or window.text for window in windows if window.id in cap.windows)
    span = "period" if cap.span is Span.CYCLE else cap.span.value
    terms = (
        said(f"cap_{span}_{cap.scope}", amount=number_text(cap.amount, exponent(currency)), currency=currency),
        said("meters", meters=_listed(cap.meters)) if cap.meters else said("all_meters"),
        cap.zones and said("zones", zones=_zones(cap.zones)),
        cap.windows and said("windows", windows=hours),
    )
    return name + "".join(term for term in terms if term)


def fee_text(fee: Fee, currency: str, days: tuple[int, int], *, is_limited: bool) -> str:
    """`Monthly rate: 1290.00 EUR a period, for each device, 20 of 31 days`; `Diesel: 3.7 % of distance, only port`.

    `days`: those that are charged, and those that they are a part of.
    """
    if fee.amount is not None:
        key = "fee_once" if fee.every is Every.ONCE else "fee_period"
        head = said(key, amount=number_text(fee.amount, exponent(currency)), currency=currency)
    else:
        head = said(
            "fee_percent", amount=number_text(fee.percent or Decimal(0)), meters=_listed(fee.meters) or "all usage"
        )
    only = _zones(fee.zones) if fee.zones else selector_text(fee.devices)
    terms = (
        fee.scope is Pool.DEVICE and said("device"),
        _days(days),
        is_limited and said("limited"),
        only and said("zones", zones=only),
    )
    return said("name", name=fee.name) + head + "".join(term for term in terms if term)


def minimum_text(amount: Decimal, currency: str, days: tuple[int, int], span: Span = Span.CYCLE) -> str:
    """`at least 10.00 EUR a period, 20 of 31 days`."""
    head = f"minimum_{'year' if span is Span.YEAR else 'period'}"
    return said(head, amount=number_text(amount, exponent(currency)), currency=currency) + _days(days)


def _days(days: tuple[int, int]) -> str:
    charged, whole = days
    return "" if charged == whole else said("days", days=charged, all=whole)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(str, names)))


def _zones(zones: Iterable[str]) -> str:
    named = {"": "outside all zones", ANY_ZONE: "any zone"}
    return ", ".join(named.get(zone, zone) for zone in sorted(zones))
