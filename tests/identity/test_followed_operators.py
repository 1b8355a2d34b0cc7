"""Whom a daemon trusts follows the file, while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.identity.operators import operator, operators_file
from tests.identity.registry_strategies import MOMENT, active, published
from waybill.identity.errors import SignatureFault
from waybill.identity.publication_id import PROPERTY
from waybill.identity.registry_messages import DevicePublication, EntryRefused, FollowedOperators, entry_body, signed_by
from waybill.identity.registry_topic import DeviceRegistry, Taken
from waybill.identity.signatures import NewOperator
from waybill.pulsar.compacted_topic import TopicMessage

ANNA, CARL = operator("anna", kinds=("device",)), operator("carl", kinds=("device",))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def message_by(one: NewOperator) -> TopicMessage:
    made = published(active())
    body = entry_body(made.entry)
    signed = signed_by(one.key)(made.entry, body, made.publication_id, "")
    properties = {**signed, PROPERTY: made.publication_id}
    return TopicMessage(made.entry.name, body, properties, int(MOMENT.timestamp() * 1000))


def test_a_key_that_is_added_to_the_file_counts_within_a_second_and_without_a_start(tmp_path: Path) -> None:
    clock = Clock()
    operators_file(tmp_path / "operators.toml", ANNA)
    followed = FollowedOperators(tmp_path / "operators.toml", clock)
    assert not followed.look()
    operators_file(tmp_path / "operators.toml", ANNA, CARL)
    assert not followed.look(), "at most once a second"
    clock.now_s = 1.0
    assert followed.look()
    assert set(followed.keys.keys) == {ANNA.key.key_id, CARL.key.key_id}
    clock.now_s = 2.0
    assert not followed.look(), "the same content is no change"


def test_what_a_key_signed_before_it_was_trusted_is_taken_when_it_is_read_again(tmp_path: Path) -> None:
    clock, message = Clock(), message_by(CARL)
    operators_file(tmp_path / "operators.toml", ANNA)
    followed = FollowedOperators(tmp_path / "operators.toml", clock)
    registry: DeviceRegistry[DevicePublication] = DeviceRegistry(lambda publication, _: publication)
    refused = registry.take(message, followed.check_signed)
    assert isinstance(refused, EntryRefused)
    assert refused.reason == SignatureFault.UNKNOWN_KEY
    operators_file(tmp_path / "operators.toml", CARL)
    clock.now_s = 1.0
    assert followed.look()
    assert isinstance(registry.take(message, followed.check_signed), Taken)


@pytest.mark.parametrize("damage", ["", "no toml", None, "keys = 1\n" * 100_000])
def test_by_a_file_that_cannot_be_used_the_former_keys_hold_and_it_is_said(tmp_path: Path, damage: str | None) -> None:
    clock, path = Clock(), tmp_path / "operators.toml"
    operators_file(path, ANNA)
    followed = FollowedOperators(path, clock)
    path.unlink() if damage is None else path.write_text(damage)
    clock.now_s = 1.0
    assert not followed.look()
    assert set(followed.keys.keys) == {ANNA.key.key_id}
    assert str(path) in followed.problem
    assert "hold" in followed.problem
    path.unlink(missing_ok=True)
    operators_file(path, CARL)
    clock.now_s = 2.0
    assert followed.look()
    assert (set(followed.keys.keys), followed.problem) == ({CARL.key.key_id}, "")
