"""The values that contracts are made of: ids, texts, amounts, moments, currencies, zones of time, accounts of banks."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from cloud_jobs.billing.billing_period import zone_of
from cloud_jobs.billing.codes import COUNTRIES, PAYMENT_MEANS, VAT_PREFIXES
from cloud_jobs.billing.currency import exponent
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.printable import unprintable
from geo.spatial.ids import id_fault
from waybill.record import DEVICE_PATTERN

_CHECKSUM: Final = 97


class Contract(BaseModel):
    """A part of what was agreed; a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _readable(text: str) -> str:
    sign = unprintable(text)
    if sign is not None:
        shown = f" ({sign})" if sign.isprintable() else ""
        raise ValueError(
            f"it has the character U+{ord(sign):04X}{shown}, which a document cannot print; "
            "use Latin, Greek or Cyrillic"
        )
    return text


def _currency(code: str) -> str:
    try:
        exponent(code)
    except BillingError as error:
        raise ValueError(str(error)) from None
    return code


def _time_zone(name: str) -> str:
    try:
        zone_of(name)
    except BillingError as error:
        raise ValueError(str(error)) from None
    return name


def _country(code: str) -> str:
    if code not in COUNTRIES:
        raise ValueError(f"no country {code!r}; use the two capital letters of ISO 3166-1, for instance DE")
    return code


def _payment_means(code: str) -> str:
    if code not in PAYMENT_MEANS:
        raise ValueError(
            f"no means of payment {code!r} in UNCL 4461 (EN 16931, BR-CL-16); 58 is a SEPA credit transfer"
        )
    return code


def _vat_id(vat_id: str) -> str:
    if vat_id[:2] not in VAT_PREFIXES:
        raise ValueError(f"the VAT id {vat_id} does not begin with the letters of a country (EN 16931, BR-CO-09)")
    return vat_id


def _zone(zone: str) -> str:
    # "": outside all zones
    if zone and (fault := id_fault(zone)):
        raise ValueError(f"no zone has this id: {fault}")
    return zone


def _iban(iban: str) -> str:
    if int("".join(str(int(sign, 36)) for sign in iban[4:] + iban[:4])) % _CHECKSUM != 1:
        raise ValueError(f"the check digits of the IBAN {iban} are wrong (ISO 13616); look for a mistyped sign")
    return iban


def _without_spaces(given: Any) -> Any:
    return given.replace(" ", "") if isinstance(given, str) else given


def _no_truth_value(given: Any) -> Any:
    if isinstance(given, bool):
        raise ValueError("a number is needed, not true or false")
    return given


Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""It stands in file names and invoice numbers, so nothing in it leads out of a folder."""
WireName = Annotated[str, StringConstraints(pattern=rf"^{DEVICE_PATTERN.pattern}$")]
"""A tenant, device or region: what batches can name."""
Zone = Annotated[str, AfterValidator(_zone)]
"""What the id of a fence or gate may be, or ""."""
Text = Annotated[
    str, StringConstraints(min_length=1, max_length=1000, strip_whitespace=True), AfterValidator(_readable)
]
Country = Annotated[str, AfterValidator(_country)]
"""ISO 3166-1 alpha-2."""
Currency = Annotated[str, AfterValidator(_currency)]
"""ISO 4217."""
TimeZone = Annotated[str, AfterValidator(_time_zone)]
"""A name of the IANA database."""
PaymentMeans = Annotated[str, AfterValidator(_payment_means)]
"""UNCL 4461."""
Number = Annotated[
    Decimal, BeforeValidator(_no_truth_value), Field(max_digits=24, decimal_places=12, allow_inf_nan=False)
]
Amount = Annotated[Number, Field(ge=0), AfterValidator(abs)]
"""At least 0; -0 is 0."""
UnitAmount = Annotated[Amount, Field(le=1_000_000_000)]
"""What one unit costs: in no currency a kilometre, an hour or a byte costs more than this."""
Percent = Annotated[Amount, Field(le=100)]
Iban = Annotated[
    str,
    BeforeValidator(_without_spaces),
    StringConstraints(pattern=r"^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$"),
    AfterValidator(_iban),
]
"""ISO 13616; spaces are passed over."""
VatId = Annotated[
    str,
    BeforeValidator(_without_spaces),
    StringConstraints(pattern=r"^[A-Z]{2}[A-Z0-9]{2,13}$"),
    AfterValidator(_vat_id),
]
"""With the letters of its country in front (EL for Greece)."""


def decimals_of(amount: Decimal) -> int:
    """How many digits an amount has after the point, without zeros at its end."""
    return max(0, -int(amount.normalize().as_tuple().exponent))


class Address(Contract):
    """A postal address (EN 16931 BG-5, BG-8)."""

    line: Text
    city: Text
    postal_code: Annotated[str, StringConstraints(max_length=32, strip_whitespace=True), AfterValidator(_readable)] = ""
    country: Country
