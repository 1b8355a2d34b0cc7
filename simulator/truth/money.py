"""The minor units of money: each currency's own number of decimals, and the one rounding."""

from fractions import Fraction

from simulator.truth.errors import TruthError

NO_DECIMALS = (
    "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND", "VUV", "XAF", "XOF",
    "XPF",
)  # fmt: skip
THREE_DECIMALS = ("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND")
FOUR_DECIMALS = ("CLF", "UYW")
EXPONENTS = {
    **dict.fromkeys(NO_DECIMALS, 0),
    **dict.fromkeys(THREE_DECIMALS, 3),
    **dict.fromkeys(FOUR_DECIMALS, 4),
}
"""ISO 4217: the currencies whose minor unit is not a hundredth."""


def exponent(currency: str) -> int:
    """Decimals of a currency by ISO 4217. Raises TruthError for what is no currency code."""
    if len(currency) != 3 or not currency.isascii() or not currency.isupper():
        raise TruthError(f"{currency!r} is not a valid ISO 4217 code")
    return EXPONENTS.get(currency, 2)


def half_up(amount: Fraction) -> int:
    """The nearest whole number, a half away from zero."""
    # Python's round() takes a half to the even number.
    size = int(abs(amount) + Fraction(1, 2))
    return size if amount >= 0 else -size
