"""A signature is of one content as one thing: no byte of it can change, or move from one part into the next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.identity.operators import operator, trusting
from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.operator_keys import Scope
from waybill.identity.publication_id import PROPERTY, drawn_at, next_publication_id
from waybill.identity.signatures import (
    REASON,
    SIGNATURE,
    SIGNER,
    Publication,
    is_signature,
    sign_publication,
    verify_publication,
)

ANNA = operator()
KEYS = trusting(ANNA)
ID = next_publication_id(None, 1_764_000_000_000, 7)
FENCE = Publication("fence", "depot@", b'{"a": 1}')
SCOPE = Scope("fence", is_shared=True)
contents = st.lists(st.binary(max_size=6), min_size=1, max_size=4)


@given(contents, contents, st.sampled_from(["push", "publication"]))
def test_a_signature_holds_for_the_very_same_parts_as_the_very_same_thing(
    signed: list[bytes], shown: list[bytes], what: str
) -> None:
    signature = ANNA.key.sign("push", signed)
    assert is_signature(ANNA.key.public, what, shown, signature) == ((signed, "push") == (shown, what))


@given(st.binary(max_size=100))
def test_no_other_bytes_are_a_signature(signature: bytes) -> None:
    assert not is_signature(ANNA.key.public, "push", [b"a"], signature)
    assert not is_signature(signature, "push", [b"a"], ANNA.key.sign("push", [b"a"]))


def test_a_publication_shows_who_when_and_why() -> None:
    properties = sign_publication(ANNA.key, FENCE, ID, "the depot has moved")
    found = verify_publication(KEYS, FENCE, properties, SCOPE)
    assert (found.signer, found.name, found.reason) == (ANNA.key.key_id, "anna", "the depot has moved")
    assert drawn_at(properties[PROPERTY]).timestamp() == 1_764_000_000


@pytest.mark.parametrize("changed", [{"kind": "tariff"}, {"key": "other@"}, {"body": b'{"a": 2}'}])
def test_no_part_of_a_publication_can_be_altered(changed: dict[str, str | bytes]) -> None:
    properties = sign_publication(ANNA.key, FENCE, ID, "why")
    with pytest.raises(SignatureRefused) as caught:
        verify_publication(KEYS, FENCE._replace(**changed), properties, SCOPE)  # type: ignore[arg-type]
    assert caught.value.fault is SignatureFault.ALTERED


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({PROPERTY: next_publication_id(ID, 0, 7)}, SignatureFault.ALTERED),
        ({REASON: "another"}, SignatureFault.ALTERED),
        ({SIGNATURE: "AAAA"}, SignatureFault.UNSIGNED),
        ({SIGNATURE: "ü"}, SignatureFault.UNSIGNED),
        ({SIGNATURE: ""}, SignatureFault.UNSIGNED),
        ({SIGNER: "0" * 16}, SignatureFault.UNKNOWN_KEY),
        ({PROPERTY: "1"}, SignatureFault.UNSIGNED),
    ],
)
def test_no_property_of_a_publication_can_be_altered(changed: dict[str, str], fault: SignatureFault) -> None:
    properties = sign_publication(ANNA.key, FENCE, ID, "why") | changed
    with pytest.raises(SignatureRefused) as caught:
        verify_publication(KEYS, FENCE, properties, SCOPE)
    assert caught.value.fault is fault


def test_what_was_published_while_a_key_was_valid_stays_right_afterwards() -> None:
    key, then = ANNA.key, drawn_at(ID)
    late = trusting(replace_until(then))
    properties = sign_publication(key, FENCE, ID, "why")
    with pytest.raises(SignatureRefused, match="not-valid-then"):
        verify_publication(late, FENCE, properties, SCOPE)
    earlier = sign_publication(key, FENCE, next_publication_id(None, 1_763_999_999_999, 7), "why")
    assert verify_publication(late, FENCE, earlier, SCOPE).name == "anna"


def replace_until(moment):
    return ANNA._replace(trusted=ANNA.trusted.model_copy(update={"valid_until": moment}))


@pytest.mark.parametrize("reason", ["", "x" * 501, "two\nlines"])
def test_a_reason_is_one_line(reason: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        sign_publication(ANNA.key, FENCE, ID, reason)
