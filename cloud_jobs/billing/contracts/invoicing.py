"""How the documents of a payer are sent and paid: profiles, electronic addresses, contacts and means of payment."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, StringConstraints, model_validator

from cloud_jobs.billing.contracts.fields import (
    Contract,
    Iban,
    PaymentMeans,
    Text,
    has_check_digits,
    without_spaces,
)

_EAS: Final = """
0002 0007 0009 0037 0060 0088 0096 0097 0106 0130 0135 0142 0147 0151 0154 0158 0170 0177 0183 0184 0188 0190 0191 0192
0193 0194 0195 0196 0198 0199 0200 0201 0202 0203 0204 0205 0208 0209 0210 0211 0212 0213 0215 0216 0217 0218 0221 0225
0230 0235 0240 9910 9913 9914 9915 9918 9919 9920 9922 9923 9924 9925 9926 9927 9928 9929 9930 9931 9932 9933 9934 9935
9936 9937 9938 9939 9940 9941 9942 9943 9944 9945 9946 9947 9948 9949 9950 9951 9952 9953 9957 9959 AN AQ AS AU EM
"""
ADDRESS_SCHEMES: Final = frozenset(_EAS.split())
"""Electronic Address Schemes (BR-CL-25); Peppol has those of digits (PEPPOL-EN16931-CL008)."""

TRANSFERS: Final = frozenset({"30", "58"})
_DIRECT_DEBITS: Final = frozenset({"49", "59"})
_CARDS: Final = frozenset({"48", "54", "55"})


class Profile(StrEnum):
    """What a receiver of documents requires beside EN 16931."""

    PEPPOL = "peppol"
    XRECHNUNG = "xrechnung"


def _scheme(code: str) -> str:
    if code not in ADDRESS_SCHEMES:
        raise ValueError(
            f"no scheme {code!r} of electronic addresses (EN 16931, BR-CL-25); 9930 is a German VAT id, EM an e-mail"
        )
    return code


class Endpoint(Contract):
    """An electronic address (BT-34, BT-49)."""

    scheme: Annotated[str, AfterValidator(_scheme)]
    id: Text


class Contact(Contract):
    """Whom a buyer asks (BG-6)."""

    name: Text
    telephone: Annotated[Text, StringConstraints(pattern=r"[0-9].*[0-9].*[0-9]")] | None = None
    email: Annotated[Text, StringConstraints(pattern=r"^[^@\s]+@([^@.\s]+\.)+[^@.\s]+$")] | None = None


def _creditor_id(given: str) -> str:
    if not has_check_digits(given[7:] + given[:4]):
        raise ValueError(f"the check digits of the creditor id {given} are wrong; look for a mistyped sign")
    return given


class Payment(Contract):
    """How to pay an invoice. `means_code`: UNCL 4461, for instance 58 for a SEPA credit transfer.

    `creditor_id`: the seller's in direct debits (BT-90).
    """

    means_code: PaymentMeans
    iban: Iban | None = None
    bic: Annotated[str, StringConstraints(pattern=r"^[A-Z0-9]{8}([A-Z0-9]{3})?$")] | None = None
    creditor_id: (
        Annotated[
            str,
            BeforeValidator(without_spaces),
            StringConstraints(pattern=r"^[A-Z]{2}[0-9]{2}[A-Z0-9]{4,31}$"),
            AfterValidator(_creditor_id),
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _fits_a_document(self) -> Self:
        if self.means_code in _DIRECT_DEBITS:
            raise ValueError(
                f"{self.means_code} is a direct debit, which needs a mandate of each payer: add payer.direct_debit "
                "there and payment.creditor_id here, with the means_code of the other payers, for instance 58"
            )
        if self.means_code in _CARDS:
            raise ValueError(
                f"{self.means_code} is a payment by card, and documents have no card number (BT-87): "
                "use 58 with payment.iban, or 1 if the means is agreed elsewhere"
            )
        if self.means_code in TRANSFERS and self.iban is None:
            raise ValueError(f"means_code {self.means_code} is a transfer: add payment.iban (EN 16931, BR-61)")
        return self


class DirectDebit(Contract):
    """The payer's mandate (BT-89) and the account to debit (BT-91). `means_code`: 59 in SEPA, 49 elsewhere."""

    mandate: Text
    iban: Iban
    means_code: Literal["49", "59"] = "59"
