"""A bill as JSON: the same bill gives the same bytes, and the bytes give the bill back.

`format` numbers what the keys are and mean: it changes with them, so that a bill of another version is recognised.
Names are the business terms of EN 16931 (in snake_case) where it has one; amounts and quantities stand twice, as the
exact integer (`_minor`, `quantity_base`) and as text to read.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from cloud_jobs.billing.adjustment import Adjustment, AdjustmentLine
from cloud_jobs.billing.bill import Bill, BillStatus
from cloud_jobs.billing.completeness import Certificate
from cloud_jobs.billing.currency import amount_text
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.lines import Line, LineKey
from cloud_jobs.billing.meters import MEASURE_OF, Meter, quantity_text
from cloud_jobs.billing.period import Period, stamp
from cloud_jobs.billing.reference import Account
from cloud_jobs.in_force import RefusedVersion
from cloud_jobs.lake.coverage import Completeness
from cloud_jobs.lake.seq_ranges import SeqRanges

Document = dict[str, Any]

FORMAT: Final = 6
_FORMAT_WITHOUT_NUMBER: Final = 1


def bill_document(bill: Bill) -> Document:
    """The bill as plain values, ready for JSON and for the invoice's template."""
    document: Document = {
        "format": FORMAT,
        "type": "invoice",
        "status": bill.status.value,
        "as_of": stamp(bill.as_of),
        "invoice_currency_code": bill.currency,
        "invoicing_period": _period(bill.period),
        "buyer": _buyer(bill.account),
        "lines": [_line(line, bill.currency) for line in bill.lines],
        "totals_by_region": {
            region: _amount(amount, bill.currency) for region, amount in bill.totals_by_region.items()
        },
        "sum_of_invoice_line_net_amount": _amount(bill.total_minor, bill.currency),
        "completeness": [_certificate(certificate) for certificate in bill.certificates],
        "refused_versions": [asdict(refused) for refused in bill.refused],
    }
    return {"invoice_number": _number(bill.account, bill.period, document), **document}


def adjustment_document(adjustment: Adjustment) -> Document:
    """The adjustment as plain values: credits and debits that keep their service period."""
    currency = adjustment.account.currency
    document: Document = {
        "format": FORMAT,
        "type": "adjustment",
        "issued_as_of": stamp(adjustment.issued_as_of),
        "as_of": stamp(adjustment.as_of),
        "invoice_currency_code": currency,
        "invoicing_period": _period(adjustment.period),
        "buyer": _buyer(adjustment.account),
        "lines": [_adjustment_line(line, currency) for line in adjustment.lines],
        "sum_of_invoice_line_net_amount": _amount(adjustment.total_minor, currency),
    }
    return {"invoice_number": _number(adjustment.account, adjustment.period, document), **document}


def to_json(document: Document) -> bytes:
    """Canonical bytes: sorted keys, two spaces, UTF-8, one line feed at the end."""
    return json.dumps(document, ensure_ascii=False, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"


def read_bill(content: bytes) -> Bill:
    """The bill whose JSON this is. Raises BillingError when it is none, is of another format, or was changed since."""
    try:
        document = json.loads(content)
        _check_format(document)
        made = _bill_from(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BillingError(f"this is not a valid bill as `waybill bill show --json` writes it: {error}") from error
    # the number holds a hash of the content, so a change by hand is found
    if bill_document(made) != document:
        raise BillingError(f"bill {document.get('invoice_number')} does not have the content it was written with")
    return made


def _check_format(document: Document) -> None:
    number = document.get("format", _FORMAT_WITHOUT_NUMBER if "invoice_number" in document else FORMAT)
    if number != FORMAT:
        raise BillingError(
            f"bill {document.get('invoice_number')} is of format {number}; this version reads {FORMAT}:"
            " use the version that issued it"
        )


def _number(account: Account, period: Period, document: Document) -> str:
    """Named by account, period and content, so that a number never stands for two contents."""
    digest = hashlib.sha256(to_json(document)).hexdigest()[:12]
    return f"{account.id}-{period.first_day:%Y%m%d}-{period.last_day:%Y%m%d}-{digest}"


def _period(period: Period) -> Document:
    return {
        "start": stamp(period.start),
        "end": stamp(period.end),
        "start_date": period.first_day.isoformat(),
        "end_date": period.last_day.isoformat(),
    }


def _buyer(account: Account) -> Document:
    vehicles = [vehicle.model_dump() for vehicle in account.vehicles]
    # the order in which an account lists them is no content: the same bill has the same bytes
    vehicles.sort(key=lambda vehicle: (vehicle["tenant"], vehicle["device"]))
    return {"identifier": account.id, "name": account.name, "tariff": account.tariff, "vehicles": vehicles}


def _amount(amount_minor: int, currency: str) -> Document:
    return {"minor": amount_minor, "text": amount_text(amount_minor, currency)}


def _key(key: LineKey) -> Document:
    measure = MEASURE_OF[key.meter]
    return {
        "region": key.region,
        "tenant": key.tenant,
        "device": key.device,
        "meter": key.meter.value,
        "zone": key.zone,
        "price_since": stamp(key.price_since),
        # never with an exponent, and with all digits: it reads back as the same Decimal
        "item_net_price": f"{key.unit_amount:f}",
        "unit": measure.unit,
        "invoiced_quantity_unit_of_measure_code": measure.code,
    }


def _quantity(meter: Meter, quantity: int) -> Document:
    return {
        "invoiced_quantity": quantity_text(meter, quantity),
        "quantity_base": {"value": quantity, "unit": MEASURE_OF[meter].base},
    }


def _line(line: Line, currency: str) -> Document:
    return {
        "invoice_line_identifier": line.number,
        **_key(line.key),
        **_quantity(line.key.meter, line.quantity),
        "invoice_line_period": _period(line.service_period),
        "invoice_line_net_amount": _amount(line.amount_minor, currency),
        "seq_ranges": line.seq_ranges.document(),
        "record_count": line.seq_ranges.count,
    }


def _adjustment_line(line: AdjustmentLine, currency: str) -> Document:
    return {
        "invoice_line_identifier": line.number,
        "direction": line.direction.value,
        **_key(line.key),
        **_quantity(line.key.meter, line.quantity),
        "invoice_line_period": _period(line.service_period),
        "invoice_line_net_amount": _amount(line.amount_minor, currency),
        "seq_ranges_added": line.added.document(),
        "seq_ranges_removed": line.removed.document(),
    }


def _certificate(certificate: Certificate) -> Document:
    return {
        "tenant": certificate.tenant,
        "device": certificate.device,
        "state": certificate.state.value,
        "records_received": certificate.received,
        "records_far_off": certificate.far_off,
        "records_erased": certificate.erased,
        "records_not_metered": certificate.not_metered,
        "declared_lost": certificate.declared_lost.document(),
        "missing": certificate.missing.document(),
    }


def _bill_from(document: Document) -> Bill:
    buyer = document["buyer"]
    account = Account(currency=document["invoice_currency_code"], id=buyer["identifier"], **_rest(buyer))
    return Bill(
        account=account,
        period=_period_from(document["invoicing_period"]),
        as_of=_moment(document["as_of"]),
        status=BillStatus(document["status"]),
        lines=tuple(_line_from(line) for line in document["lines"]),
        certificates=tuple(_certificate_from(found) for found in document["completeness"]),
        refused=tuple(RefusedVersion(**found) for found in document["refused_versions"]),
    )


def _rest(buyer: Document) -> Document:
    return {name: value for name, value in buyer.items() if name != "identifier"}


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _period_from(document: Document) -> Period:
    return Period(_moment(document["start"]), _moment(document["end"]))


def _line_from(document: Document) -> Line:
    key = LineKey(
        region=document["region"],
        tenant=document["tenant"],
        device=document["device"],
        meter=Meter(document["meter"]),
        zone=document["zone"],
        price_since=_moment(document["price_since"]),
        unit_amount=Decimal(document["item_net_price"]),
    )
    return Line(
        number=document["invoice_line_identifier"],
        key=key,
        service_period=_period_from(document["invoice_line_period"]),
        quantity=document["quantity_base"]["value"],
        amount_minor=document["invoice_line_net_amount"]["minor"],
        seq_ranges=SeqRanges.read(document["seq_ranges"]),
    )


def _certificate_from(document: Document) -> Certificate:
    return Certificate(
        tenant=document["tenant"],
        device=document["device"],
        state=Completeness(document["state"]),
        received=document["records_received"],
        far_off=document["records_far_off"],
        erased=document["records_erased"],
        not_metered=document["records_not_metered"],
        declared_lost=SeqRanges.read(document["declared_lost"]),
        missing=SeqRanges.read(document["missing"]),
    )
