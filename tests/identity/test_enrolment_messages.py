"""The messages of enrolment: what one side writes the other reads, and no bytes are worse than a typed error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.identity.enrolment import (
    MAX_ENROLMENT_BYTES,
    EnrolmentGranted,
    EnrolmentRefused,
    EnrolmentRequest,
    RefusedBecause,
    decode_enrolment_answer,
    decode_enrolment_request,
    encode_enrolment_answer,
    encode_enrolment_request,
)
from waybill.identity.errors import EnrolmentUnreadable
from waybill.record import EnrolmentChannel, enrolment_filters, enrolment_requester, enrolment_rule, enrolment_topic

NONCE = "0123456789abcdef" * 2
nonces = st.text("0123456789abcdef", min_size=32, max_size=32)
pems = st.text(st.characters(max_codepoint=127), max_size=4000).map(str.encode)


@given(nonces, pems)
def test_a_request_is_read_as_it_was_written(nonce: str, csr: bytes) -> None:
    request = EnrolmentRequest(nonce, csr)
    assert decode_enrolment_request(encode_enrolment_request(request)) == request


@given(nonces, pems)
def test_a_certificate_is_read_as_it_was_written(nonce: str, chain: bytes) -> None:
    answer = EnrolmentGranted(nonce, chain)
    assert decode_enrolment_answer(encode_enrolment_answer(answer)) == answer


@given(nonces | st.just(""), st.sampled_from(RefusedBecause), st.text(max_size=100).filter(str.isprintable))
def test_a_refusal_is_read_as_it_was_written(nonce: str, reason: RefusedBecause, detail: str) -> None:
    answer = EnrolmentRefused(nonce, reason, detail)
    assert decode_enrolment_answer(encode_enrolment_answer(answer)) == answer


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"version": 2, "nonce": NONCE, "request": ""}, "version"),
        ({"version": True, "nonce": NONCE, "request": ""}, "version"),
        ({"version": 1, "nonce": "0", "request": ""}, "nonce"),
        ({"version": 1, "nonce": NONCE, "request": 1}, "no PEM"),
        ({"version": 1, "nonce": NONCE, "request": "ü"}, "no PEM"),
        ({"version": 1, "nonce": NONCE, "request": "", "more": 1}, "members"),
        ({"version": 1, "nonce": NONCE}, "members"),
        ([], "object"),
    ],
)
def test_a_request_that_is_not_as_it_should_be_is_refused_and_says_why(members: object, why: str) -> None:
    with pytest.raises(EnrolmentUnreadable, match=why):
        decode_enrolment_request(json.dumps(members).encode())


def test_of_another_version_the_nonce_is_still_known_so_that_the_answer_finds_its_question() -> None:
    with pytest.raises(EnrolmentUnreadable) as caught:
        decode_enrolment_request(json.dumps({"version": 2, "nonce": NONCE}).encode())
    assert caught.value.nonce == NONCE


def test_a_message_that_is_too_large_is_not_read() -> None:
    data = encode_enrolment_request(EnrolmentRequest(NONCE, b"x"))
    with pytest.raises(EnrolmentUnreadable):
        decode_enrolment_request(data + b" " * MAX_ENROLMENT_BYTES)


@pytest.mark.parametrize("name", ["acme/bus-17", "claim@token-0123456789abcdef"])
def test_a_topic_names_who_asks(name: str) -> None:
    topic = enrolment_topic(name, EnrolmentChannel.REQUEST)
    assert enrolment_requester(topic) == name
    assert topic == enrolment_rule(EnrolmentChannel.REQUEST).replace("%u", name)
    levels = topic.count("/")
    assert [one.count("/") == levels for one in enrolment_filters(EnrolmentChannel.REQUEST)].count(True) == 1
    assert enrolment_requester(enrolment_topic(name, EnrolmentChannel.ANSWER)) is None


@pytest.mark.parametrize("name", ["", "acme", "a/b/c", "+/b", "#", "claim@", "claim@a/b", "a b/c", "CLAIM@x"])
def test_who_can_have_no_name_has_no_topic(name: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        enrolment_topic(name, EnrolmentChannel.ANSWER)


@given(st.text(max_size=60))
def test_no_topic_is_an_error(text: str) -> None:
    enrolment_requester(text)
    enrolment_requester(f"waybill/enrol/1/{text}/request")
