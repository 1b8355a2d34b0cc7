"""A flood of messages that anybody can make hides no answer that an operator waits for."""

from __future__ import annotations

from gateway.access.publisher import MAX_OF_A_RANK, RefusedEntries
from waybill.identity.confirmations import decode_confirmation, encode_confirmation


def test_a_flood_takes_no_room_from_what_a_key_signed_and_what_found_none_is_counted() -> None:
    refused = RefusedEntries()
    refused.add("of a new key", "unknown-key")
    for number in range(MAX_OF_A_RANK + 600):
        refused.add(f"a stranger's {number}", "unsigned")
    refused.add("of a clock", "ahead")
    for number in range(MAX_OF_A_RANK):
        refused.add(f"another's {number}", "unknown-key")
    refused.add("of a tenant's", "no-right")
    assert refused.dropped == 602
    taken = refused.take()
    named = [taken.get(one) for one in ("of a new key", "of a clock", "of a tenant's")]
    assert named == ["unknown-key", "ahead", "no-right"]
    assert (bool(refused), refused.take()) == (False, {})
    said = decode_confirmation(encode_confirmation("eu", (), 1.0, taken.items()))
    assert said is not None, "it is one message, that everybody reads"
    assert said.refused == taken


def test_a_message_that_comes_again_takes_no_more_room_and_a_copy_hides_no_better_reason() -> None:
    refused = RefusedEntries()
    for reason in ("no-right", "altered", "unsigned"):
        for _ in range(2 * MAX_OF_A_RANK):
            refused.add("one", reason)
    assert (refused.dropped, refused.take()) == (0, {"one": "no-right"})
