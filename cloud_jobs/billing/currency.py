"""Currencies and their minor units, ISO 4217 (list one: circulating currencies)."""

from __future__ import annotations

from cloud_jobs.billing.errors import UnknownCurrency

_NO_DECIMALS = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"
_TWO_DECIMALS = """
AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CNY COP CRC CUP CVE
CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW
KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK
PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS
UAH USD UYU UZS VED VES WST XCD XCG YER ZAR ZMW ZWG
"""
_THREE_DECIMALS = "BHD IQD JOD KWD LYD OMR TND"

EXPONENT_OF: dict[str, int] = {
    **dict.fromkeys(_NO_DECIMALS.split(), 0),
    **dict.fromkeys(_TWO_DECIMALS.split(), 2),
    **dict.fromkeys(_THREE_DECIMALS.split(), 3),
}
"""Currency code -> digits after the point."""


def exponent(currency: str) -> int:
    """How many digits after the point the currency has. Raises UnknownCurrency."""
    try:
        return EXPONENT_OF[currency]
    except KeyError:
        raise UnknownCurrency(currency) from None


def amount_text(amount_minor: int, currency: str) -> str:
    """The amount in major units with all of the currency's digits, without its name: `-12.30`, `500`, `0.005`."""
    digits = exponent(currency)
    sign, whole = ("-" if amount_minor < 0 else ""), abs(amount_minor)
    if digits == 0:
        return f"{sign}{whole}"
    return f"{sign}{whole // 10**digits}.{whole % 10**digits:0{digits}d}"
