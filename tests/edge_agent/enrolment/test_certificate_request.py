"""Asking: the key stays on the device and the same until it is answered; an answer is believed when it fits."""

import base64
import stat
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.enrolment.certificates import CertificateFolder, read_validity
from edge_agent.enrolment.enrolment_loop import CertificateRequests
from edge_agent.errors import EnrolmentFailed
from tests.edge_agent.enrolment.makers import DEVICE, Issuer, root_file
from tests.examples import examples
from waybill.daemon.tls import check_key_pair
from waybill.identity.authority import KeyPair, make_request, read_request
from waybill.identity.enrolment import (
    EnrolmentGranted,
    RefusedBecause,
    decode_enrolment_request,
    encode_enrolment_answer,
)


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return root_file(tmp_path_factory.mktemp("trusted"))


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    return CertificateFolder(tmp_path, "acme", "bus-1")


def test_a_certificate_that_was_given_is_kept_with_its_key_for_its_owner_alone(
    folder: CertificateFolder, root: Path, tmp_path: Path
) -> None:
    asking, issuer = CertificateRequests(DEVICE, folder, root), Issuer()
    message = asking.make()
    assert b"PRIVATE KEY" not in message
    answer = issuer.grant(message)
    assert asking.is_answered_by(answer)
    held = asking.take(answer)
    check_key_pair(held.path, held.path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["next.pem"]
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    assert held.validity.not_after_s == int((issuer.now + issuer.lifetime).timestamp())


def test_until_it_is_answered_a_request_has_the_same_key_also_after_a_restart(
    folder: CertificateFolder, root: Path
) -> None:
    asking = CertificateRequests(DEVICE, folder, root)
    keys = [read_request(decode_enrolment_request(asking.make()).csr).public_key for _ in range(2)]
    again = CertificateRequests(DEVICE, folder, root).make()
    assert keys[0] == keys[1] == read_request(decode_enrolment_request(again).csr).public_key


def test_an_answer_to_an_earlier_question_is_not_taken_for_this_one(folder: CertificateFolder, root: Path) -> None:
    asking, issuer = CertificateRequests(DEVICE, folder, root), Issuer()
    earlier = issuer.grant(asking.make())
    asking.make()
    assert not asking.is_answered_by(earlier)
    assert not asking.is_answered_by(b"nonsense")


def test_a_certificate_for_another_key_or_name_is_not_believed(folder: CertificateFolder, root: Path) -> None:
    asking, issuer = CertificateRequests(DEVICE, folder, root), Issuer()
    nonce = decode_enrolment_request(asking.make()).nonce
    other_key = issuer.issue(make_request(KeyPair.generate(), "acme/bus-1"))
    with pytest.raises(EnrolmentFailed, match="another key"):
        asking.take(encode_enrolment_answer(EnrolmentGranted(nonce, other_key.chain_pem)))
    other_name = issuer.issue(make_request(KeyPair.generate(), "acme/bus-2"), device="bus-2")
    with pytest.raises(EnrolmentFailed, match="acme/bus-2"):
        asking.take(encode_enrolment_answer(EnrolmentGranted(nonce, other_name.chain_pem)))
    with pytest.raises(EnrolmentFailed, match="no certificate"):
        asking.take(encode_enrolment_answer(EnrolmentGranted(nonce, b"nonsense")))
    assert folder.newest() is None


@pytest.mark.parametrize(
    ("reason", "keeps"), [(RefusedBecause.CLAIM_USED, True), (RefusedBecause.OLD_KEY, False)], ids=str
)
def test_a_refusal_says_why_and_a_key_that_cannot_be_certified_is_let_go_of(
    folder: CertificateFolder, root: Path, reason: RefusedBecause, keeps: bool
) -> None:
    asking = CertificateRequests(DEVICE, folder, root)
    answer = Issuer().refuse(asking.make(), reason)
    with pytest.raises(EnrolmentFailed, match=rf"refused \({reason}\): no"):
        asking.take(answer)
    assert (folder.requested_key() is not None) == keeps


def test_the_certificates_of_another_name_are_not_found(folder: CertificateFolder, root: Path, tmp_path: Path) -> None:
    asking = CertificateRequests(DEVICE, folder, root)
    asking.take(Issuer().grant(asking.make()))
    assert CertificateFolder(tmp_path, "rival", "bus-1").newest() is None


def test_a_certificate_of_an_authority_that_is_not_trusted_is_not_kept_and_it_is_asked_for_again(
    folder: CertificateFolder, root: Path
) -> None:
    asking = CertificateRequests(DEVICE, folder, root)
    with pytest.raises(EnrolmentFailed, match="not signed by an authority"):
        asking.take(Issuer(key=KeyPair.generate()).grant(asking.make()))
    assert folder.newest() is None
    asking.take(Issuer().grant(asking.make()))
    assert folder.newest() is not None


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
