"""Asking: the key stays on the device and the same until it is answered; an answer is believed when it fits."""

import stat
from pathlib import Path

import pytest

from edge_agent.enrolment.certificates import CertificateFolder, read_certificate_file
from edge_agent.enrolment.enrolment_loop import CertificateRequests
from edge_agent.errors import EnrolmentFailed
from tests.edge_agent.enrolment.makers import DEVICE, Issuer, root_file
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
    assert held.not_after_s == int((issuer.now + issuer.lifetime).timestamp())


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


def test_a_certificate_of_an_authority_that_is_not_trusted_is_not_kept_and_it_is_asked_for_again(
    folder: CertificateFolder, root: Path
) -> None:
    asking = CertificateRequests(DEVICE, folder, root)
    with pytest.raises(EnrolmentFailed, match="not signed by an authority"):
        asking.take(Issuer(key=KeyPair.generate()).grant(asking.make()))
    assert folder.newest() is None
    asking.take(Issuer().grant(asking.make()))
    assert folder.newest() is not None


@pytest.mark.parametrize("pem", [b"", b"\xff" * 99, KeyPair.generate().private_pem()])
def test_a_file_without_a_whole_certificate_counts_as_missing(tmp_path: Path, pem: bytes) -> None:
    (tmp_path / "current.pem").write_bytes(pem)
    assert read_certificate_file(tmp_path / "current.pem") is None
