"""A certificate's times are read as the library for certificates reads them, and no bytes are worse than an error."""

from __future__ import annotations

import base64
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.enrolment.certificates import read_validity
from tests.edge_agent.enrolment.makers import Issuer
from tests.examples import examples
from waybill.identity.authority import KeyPair, make_request

KEY = KeyPair.generate()


@given(
    st.datetimes(datetime(1980, 1, 1), datetime(2120, 1, 1), timezones=st.just(UTC)),
    st.timedeltas(timedelta(hours=1), timedelta(days=3000)),
)
@settings(max_examples=examples(40), deadline=None)
def test_the_times_and_the_serial_are_those_of_the_library(now: datetime, lifetime: timedelta) -> None:
    issued = Issuer(now, lifetime).issue(make_request(KEY, "acme/bus-1"))
    found = read_validity(b"what stands before it\n" + issued.chain_pem)
    assert found.serial == issued.serial
    assert found.not_before_s == issued.certificate.not_valid_before_utc.timestamp()
    assert found.not_after_s == issued.not_after.timestamp()


PEM = Issuer().issue(make_request(KEY, "acme/bus-1")).chain_pem


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
@settings(max_examples=examples(300), deadline=None)
def test_no_bytes_are_worse_than_a_value_error(data: bytes, at: int, byte: int) -> None:
    der = bytearray(base64.b64decode(b"".join(PEM.splitlines()[1:-1])))
    der[at] = byte
    changed = b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(der) + b"\n-----END CERTIFICATE-----\n"
    inner = b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(data) + b"\n-----END CERTIFICATE-----\n"
    for pem in (data, changed, inner):
        with suppress(ValueError):
            read_validity(pem)


@pytest.mark.parametrize("pem", [b"", PEM[:300], KEY.private_pem()])
def test_what_is_no_whole_certificate_is_refused(pem: bytes) -> None:
    with pytest.raises(ValueError, match="certificate"):
        read_validity(pem)
