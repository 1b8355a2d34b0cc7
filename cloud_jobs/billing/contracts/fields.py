"""Field types of contracts: ids, texts, amounts, currencies, time zones, bank accounts, VAT, attributes of devices."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from cloud_jobs.billing.billing_period import zone_of
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.units import exponent
from geo.spatial.ids import id_fault
from waybill.record import DEVICE_PATTERN

# Code lists of EN 16931: countries, VAT prefixes, means of payment, currencies.

_ISO_3166 = """
AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BV BW BY BZ
CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK FM FO FR
GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR IS IT
JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO
MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW PY
QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM TN TO
TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW
"""

COUNTRIES: Final = frozenset(_ISO_3166.split()) | {"XI"}
"""ISO 3166-1 alpha-2, and XI: Northern Ireland, as VAT has it (BR-CL-14)."""

VAT_PREFIXES: Final = COUNTRIES | {"EL"}
"""The prefix of Greece for VAT is not its country's code (BR-CO-09)."""

PAYMENT_MEANS: Final = frozenset(str(code) for code in (*range(1, 71), *range(74, 79), *range(91, 99)))
"""UNCL 4461 (BR-CL-16)."""

NEWER_CURRENCIES: Final = frozenset({"MRU", "STN", "XCG"})
"""Currencies of ISO 4217 that the published rules do not list yet (BR-CL-04)."""


# Characters allowed in names, addresses and references: those that every document format can show.

_PRINTED: Final = (
    "\x20-\x7e\xa0-\xac\xae-\u0377\u037a-\u037f\u0384-\u038a\u038c\u038e-\u03a1\u03a3-\u03e1\u03f0-\u052f"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fc4\u1fc6-\u1fd3\u1fd6-\u1fdb\u1fdd-\u1fef\u1ff2-\u1ff4\u1ff6-\u1ffe"
    "\u2010-\u2027\u202f-\u205e\u20a0-\u20c0\u2100-\u215f\u2212"
)
"""Latin, Greek and Cyrillic, punctuation, currencies and signs that stand for letters, as far as the PDF's font goes.

Nothing in it is invisible or turns the direction of a line, and none needs its neighbours to be drawn."""
_EAST_ASIAN: Final = (
    "\u3000-\u3029\u3030-\u303e\u3041-\u3096\u309b-\u30ff\u3131-\u3163\u3165-\u318e\u3200-\u321e\u3220-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufa6d\ufa70-\ufad9\uff01-\uff9f\uffa1-\uffbe\uffc2-\uffc7\uffca-\uffcf"
    "\uffd2-\uffd7\uffda-\uffdc\uffe0-\uffe6\U00020000-\U0002a6df"
)
"""Chinese, Japanese and Korean, of which each sign stands alone, too. A PDF needs a further font for them."""
_NOT_PRINTED: Final = re.compile(f"[^{_PRINTED}{_EAST_ASIAN}]")


def unprintable(text: str) -> str | None:
    """The first character that documents cannot print; None if there is none."""
    found = _NOT_PRINTED.search(text)
    return None if found is None else found.group()


_CHECKSUM: Final = 97


class Contract(BaseModel):
    """Base of all contract models; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def readable(text: str) -> str:
    """The text, if documents can print it. Raises ValueError."""
    sign = unprintable(text)
    if sign is not None:
        shown = f" ({sign})" if sign.isprintable() else ""
        raise ValueError(
            f"it has the character U+{ord(sign):04X}{shown}, which a document cannot print; "
            "use Latin, Greek, Cyrillic, Chinese, Japanese or Korean"
        )
    return text


def _checked_by(check: Callable[[str], object]) -> AfterValidator:
    """Refuses the texts for which `check` raises a BillingError."""

    def checked(text: str) -> str:
        try:
            check(text)
        except BillingError as error:
            raise ValueError(str(error)) from None
        return text

    return AfterValidator(checked)


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


def has_check_digits(text: str) -> bool:
    """Whether a text with its country and check digits at the end fulfils ISO 7064, MOD 97-10."""
    return int("".join(str(int(sign, 36)) for sign in text)) % _CHECKSUM == 1


def _iban(iban: str) -> str:
    if not has_check_digits(iban[4:] + iban[:4]):
        raise ValueError(f"the check digits of the IBAN {iban} are wrong (ISO 13616); look for a mistyped sign")
    return iban


def without_spaces(given: Any) -> Any:
    return given.replace(" ", "") if isinstance(given, str) else given


def _without_white_space(given: Any) -> Any:
    return "".join(given.split()) if isinstance(given, str) else given


MAX_LOGO_BYTES: Final = 48 << 10
MAX_LOGO_PIXELS: Final = 2_000
"""On each side."""


def _picture(text: str) -> str:
    # most contracts have no picture
    from PIL import Image  # noqa: PLC0415

    try:
        content = base64.b64decode(text, validate=True)
        if len(content) > MAX_LOGO_BYTES:
            raise ValueError(f"it has {len(content)} bytes, and {MAX_LOGO_BYTES} are allowed")
        with Image.open(io.BytesIO(content), formats=["PNG", "JPEG"]) as picture:
            if max(picture.size) > MAX_LOGO_PIXELS:
                raise ValueError(f"it has {picture.width} x {picture.height} pixels; each side may have 2000")
            picture.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"no PNG or JPEG in base64 that a document can show: {str(error)[:100]}") from error
    return text


def _no_truth_value(given: Any) -> Any:
    if isinstance(given, bool):
        raise ValueError("a number is needed, not true or false")
    return given


Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""Part of file names and invoice numbers, so it has no path separators."""
WireName = Annotated[str, StringConstraints(pattern=rf"^{DEVICE_PATTERN.pattern}$")]
"""A tenant, device or region as batches name it."""
Zone = Annotated[str, AfterValidator(_zone)]
"""What the id of a fence or gate may be, or ""."""


def _without_terms(name: str) -> str:
    if ": " in name or ";" in name:
        raise ValueError(f"leave ': ' and ';' out of {name!r}; on documents other words follow it")
    return name


Text = Annotated[str, StringConstraints(min_length=1, max_length=1000, strip_whitespace=True), AfterValidator(readable)]
PrintedName = Annotated[Text, Field(max_length=200), AfterValidator(_without_terms)]
"""A name before other words of a line."""
Country = Annotated[str, AfterValidator(_country)]
"""ISO 3166-1 alpha-2."""
Currency = Annotated[str, _checked_by(exponent)]
"""ISO 4217."""
TimeZone = Annotated[str, _checked_by(zone_of)]
"""A name of the IANA database."""
PaymentMeans = Annotated[str, AfterValidator(_payment_means)]
"""UNCL 4461."""
Number = Annotated[
    Decimal, BeforeValidator(_no_truth_value), Field(max_digits=24, decimal_places=12, allow_inf_nan=False)
]
Amount = Annotated[Number, Field(ge=0), AfterValidator(abs)]
"""At least 0; -0 is 0."""
UnitAmount = Annotated[Amount, Field(le=1_000_000_000)]
"""The cost of one unit; no currency needs more for a kilometre, an hour or a byte."""
Percent = Annotated[Amount, Field(le=100)]
SignedAmount = Annotated[
    Number, Field(ge=-1_000_000_000, le=1_000_000_000), AfterValidator(lambda one: one or abs(one))
]
"""A fee, or below 0 a credit; -0 is 0."""
SignedPercent = Annotated[SignedAmount, Field(ge=-100, le=1_000)]
Language = Literal["de", "en", "fr", "ja"]
"""A language of printed documents; each has a file of texts."""
Colour = Annotated[str, StringConstraints(pattern=r"^#[0-9a-f]{6}$")]
Logo = Annotated[str, BeforeValidator(_without_white_space), AfterValidator(_picture)]
"""A PNG or JPEG in base64."""
Iban = Annotated[
    str,
    BeforeValidator(without_spaces),
    StringConstraints(pattern=r"^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$"),
    AfterValidator(_iban),
]
"""ISO 13616; spaces are removed."""
VatId = Annotated[
    str,
    BeforeValidator(without_spaces),
    StringConstraints(pattern=r"^[A-Z]{2}[A-Z0-9]{2,13}$"),
    AfterValidator(_vat_id),
]
"""With country prefix (EL for Greece)."""


def decimals_of(amount: Decimal) -> int:
    """The number of digits after the point, without trailing zeros."""
    return max(0, -int(amount.normalize().as_tuple().exponent))


class Address(Contract):
    """A postal address (EN 16931 BG-5, BG-8)."""

    line: Text
    city: Text
    postal_code: Annotated[str, StringConstraints(max_length=32, strip_whitespace=True), AfterValidator(readable)] = ""
    country: Country


# VAT of a payer, and what EN 16931 requires of seller and buyer.


class VatCategory(StrEnum):
    """UNCL 5305, as EN 16931 uses it."""

    STANDARD = "S"
    ZERO = "Z"
    EXEMPT = "E"
    REVERSE_CHARGE = "AE"
    INTRA_COMMUNITY = "K"
    EXPORT = "G"
    OUT_OF_SCOPE = "O"


NEEDS_SELLERS_VAT_ID: Final[Mapping[VatCategory, str]] = MappingProxyType(
    {VatCategory.INTRA_COMMUNITY: "BR-IC-02", VatCategory.EXPORT: "BR-G-02"}
)
"""The rule that requires a seller's vat_id; other categories accept a tax_registration_id."""

NEEDS_BUYERS_VAT_ID: Final[Mapping[VatCategory, str]] = MappingProxyType(
    {VatCategory.REVERSE_CHARGE: "BR-AE-02", VatCategory.INTRA_COMMUNITY: "BR-IC-02"}
)
"""The rule that requires a payer's vat_id."""


def tax_text(category: VatCategory, rate: Decimal) -> str:
    """What is taxed together (BR-S-08): `S 19`, `AE 0`."""
    return f"{category.value} {rate.normalize():f}"


class Vat(Contract):
    """A tax on charges. `rate` in per cent; above 0 only for category S."""

    category: VatCategory
    rate: Annotated[Number, Field(ge=0, le=100, max_digits=6, decimal_places=3)] = Decimal(0)
    exemption_reason: Text | None = None

    @property
    def tax(self) -> str:
        return tax_text(self.category, self.rate)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.category is VatCategory.STANDARD) != (self.rate > 0):
            raise ValueError(
                f"category {self.category} with a rate of {self.rate}: S has a rate above 0, all others have 0"
            )
        unexplained = self.category not in {VatCategory.STANDARD, VatCategory.ZERO}
        if unexplained != (self.exemption_reason is not None):
            raise ValueError(
                f"category {self.category} needs an exemption_reason, for instance 'Reverse charge'"
                if unexplained
                else f"category {self.category} has no exemption_reason"
            )
        return self


# Attributes of devices: what an assignment states (class, axles, weight), and what prices and fees select by it.

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
