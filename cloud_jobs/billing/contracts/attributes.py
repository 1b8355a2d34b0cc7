"""Attributes of devices: what an assignment states (class, axles, weight), and what prices and fees select by it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from cloud_jobs.billing.contracts.fields import Id, readable

MAX_ATTRIBUTES: Final = 20
MAX_VALUE_CHARACTERS: Final = 100
_MAX_EXPONENT: Final = 30
_FACTOR: Final = re.compile(r"\d{1,12}(\.\d{1,12})?", re.ASCII)


def _as_text(given: Any) -> Any:
    """Numbers in one form, so that 40, 40.0 and 4e1 are one value."""
    if isinstance(given, bool):
        raise ValueError("write a text or a number, not true or false")
    if not isinstance(given, int | float | Decimal):
        return given
    number = Decimal(str(given))
    if not number.is_finite() or abs(number.adjusted()) > _MAX_EXPONENT:
        raise ValueError(f"a number of at most {_MAX_EXPONENT} digits is needed")
    return f"{number.normalize() or Decimal(0):f}"


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str | int | float | Decimal) else given


AttributeValue = Annotated[
    str,
    BeforeValidator(_as_text),
    StringConstraints(min_length=1, max_length=MAX_VALUE_CHARACTERS, strip_whitespace=True),
    AfterValidator(readable),
]
"""A text, or a number as text."""
AttributesOfDevice = Annotated[dict[Id, AttributeValue], Field(max_length=MAX_ATTRIBUTES)]
Selector = Annotated[
    dict[Id, Annotated[tuple[AttributeValue, ...], BeforeValidator(_as_list), Field(min_length=1, max_length=100)]],
    Field(max_length=MAX_ATTRIBUTES),
]
"""Attributes, each with the values of which a device has one; {}: every device."""
Factors = Annotated[tuple[Id, ...], BeforeValidator(_as_list), Field(max_length=3)]
"""The attributes by whose numbers an amount is multiplied."""
Attributes = tuple[tuple[str, str], ...]
"""Names and values of a device, in the order of the names."""


def attributes_of(stated: Mapping[str, str]) -> Attributes:
    """Equal attributes are one object, because very many devices share few of them."""
    return _interned(tuple(sorted(stated.items()))) if stated else ()


@lru_cache(maxsize=65_536)
def _interned(attributes: Attributes) -> Attributes:
    return attributes


def matches(selector: Mapping[str, tuple[str, ...]], attributes: Attributes) -> bool:
    known = dict(attributes)
    return all(known.get(name) in values for name, values in selector.items())


def may_both_select(one: Mapping[str, tuple[str, ...]], other: Mapping[str, tuple[str, ...]]) -> bool:
    return all(set(one[name]) & set(other[name]) for name in one.keys() & other.keys())


def factor_of(attributes: Attributes, name: str) -> Decimal | None:
    """The number of an attribute; None if it is missing or no number of at most 12 digits and 12 decimals."""
    value = dict(attributes).get(name, "")
    return Decimal(value) if _FACTOR.fullmatch(value) else None


def selector_text(selector: Mapping[str, tuple[str, ...]]) -> str:
    """`axles 4/5, class hgv`."""
    return ", ".join(f"{name} {'/'.join(sorted(values))}" for name, values in sorted(selector.items()))


def attributes_text(attributes: Attributes) -> str:
    return ", ".join(f"{name} {value}" for name, value in attributes) or "no attributes"
