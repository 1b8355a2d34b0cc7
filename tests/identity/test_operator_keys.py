"""A key is trusted for what its table says, for its time, and for nothing else."""

import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.identity.makers import MOMENT, active, operator, operators_file, published, trusting
from waybill.identity.errors import OperatorKeyRefused, SignatureFault, SignatureRefused
from waybill.identity.operator_keys import OperatorKeys, Scope
from waybill.identity.registry_messages import DevicePublication, EntryRefused, FollowedOperators, entry_body, signed_by
from waybill.identity.registry_topic import DeviceRegistry, EntryInForce
from waybill.identity.signatures import (
    ID_PROPERTY,
    REASON,
    SIGNATURE,
    SIGNER,
    NewOperator,
    Publication,
    drawn_at,
    is_signature,
    next_publication_id,
    operators_toml,
    read_operator_key,
    read_operators,
    read_signed_push,
    sign_publication,
    sign_push,
    trust_operator,
    verify_publication,
    verify_push,
    write_operator,
)
from waybill.pulsar.compacted_topic import TopicMessage
from waybill.settings import SettingsError, parse

NOW = datetime(2026, 11, 23, tzinfo=UTC)
SETTINGS = Scope("settings", frozenset({"acme"}))


def fault(keys: OperatorKeys, made: tuple[str, bytes], scope: Scope = SETTINGS, moment: datetime = NOW) -> str:
    with pytest.raises(SignatureRefused) as caught:
        keys.verify(*made, "push", [b"a"], scope=scope, moment=moment)
    return caught.value.fault


def test_a_key_that_is_not_trusted_and_a_signature_of_another_key_are_refused() -> None:
    anna, other = operator(), operator("other")
    keys = trusting(anna)
    assert fault(keys, (other.key.key_id, other.key.sign("push", [b"a"]))) == SignatureFault.UNKNOWN_KEY
    assert fault(keys, (anna.key.key_id, other.key.sign("push", [b"a"]))) == SignatureFault.ALTERED
    assert fault(keys, (anna.key.key_id, anna.key.sign("push", [b"b"]))) == SignatureFault.ALTERED
    assert fault(keys, (anna.key.key_id, b"")) == SignatureFault.ALTERED


@pytest.mark.parametrize(
    "scope",
    [
        Scope("settings", frozenset({"beta"})),
        Scope("settings", frozenset({"acme", "beta"})),
        Scope("device", frozenset({"acme"})),
        Scope("account", frozenset({"acme"}), frozenset({"beta-north"})),
        Scope("account", frozenset({"acme"}), frozenset({"acme"})),
        Scope("account", frozenset({"beta"}), frozenset({"acme-1"})),
        Scope("account", is_shared=True),
    ],
)
def test_a_key_speaks_for_its_tenants_accounts_and_kinds_alone(scope: Scope) -> None:
    one = operator(tenants=("acme",), kinds=("settings", "account"), accounts=("acme-*",))
    made = (one.key.key_id, one.key.sign("push", [b"a"]))
    assert fault(trusting(one), made, scope) == SignatureFault.NO_RIGHT


def test_a_key_speaks_for_what_is_its_own() -> None:
    one = operator(tenants=("acme",), kinds=("settings", "account"), accounts=("acme-*", "main"))
    made = (one.key.key_id, one.key.sign("push", [b"a"]))
    for scope in (SETTINGS, Scope("account", frozenset({"acme"}), frozenset({"acme-1", "main"}))):
        assert trusting(one).verify(*made, "push", [b"a"], scope=scope, moment=NOW) == one.trusted


def test_the_files_of_an_operator_say_what_was_made_and_nobody_else_reads_the_key(tmp_path: Path) -> None:
    anna, paul = operator(tenants=("acme",), accounts=("acme-*",), valid_until=NOW), operator("paul")
    write_operator(tmp_path / "keys" / "anna.key", anna)
    for one in (anna, paul):
        trust_operator(tmp_path / "operators.toml", one)
    assert read_operators(tmp_path / "operators.toml") == trusting(anna, paul)
    assert read_operator_key(tmp_path / "keys" / "anna.key").key_id == anna.key.key_id
    assert (tmp_path / "keys" / "anna.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OperatorKeyRefused, match="never replaced"):
        write_operator(tmp_path / "keys" / "anna.key", paul)


@pytest.mark.parametrize("content", [b"", b"no key", b"x" * 10_000, b"-----BEGIN PRIVATE KEY-----\nAA==\n"])
def test_a_file_that_is_no_key_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "anna.key").write_bytes(content)
    with pytest.raises(OperatorKeyRefused, match=r"anna\.key"):
        read_operator_key(tmp_path / "anna.key")
    with pytest.raises(OperatorKeyRefused, match="cannot be read"):
        read_operator_key(tmp_path / "nobody.key")


def test_a_key_under_another_id_is_refused_and_its_id_is_said() -> None:
    one = operator()
    text = operators_toml({"0" * 16: one.trusted})
    with pytest.raises(SettingsError, match=one.key.key_id):
        parse(OperatorKeys, text, "operators.toml")


ANNA, CARL = operator("anna", kinds=("device",)), operator("carl", kinds=("device",))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def message_by(one: NewOperator) -> TopicMessage:
    made = published(active())
    body = entry_body(made.entry)
    signed = signed_by(one.key)(made.entry, body, made.publication_id, "")
    properties = {**signed, ID_PROPERTY: made.publication_id}
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
    assert isinstance(registry.take(message, followed.check_signed), EntryInForce)


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


SIGNING_ANNA = operator()
KEYS = trusting(SIGNING_ANNA)
ID = next_publication_id(None, 1_764_000_000_000, 7)
FENCE = Publication("fence", "depot@", b'{"a": 1}')
SCOPE = Scope("fence", is_shared=True)
contents = st.lists(st.binary(max_size=6), min_size=1, max_size=4)


@given(contents, contents, st.sampled_from(["push", "publication"]))
def test_a_signature_holds_for_the_very_same_parts_as_the_very_same_thing(
    signed: list[bytes], shown: list[bytes], what: str
) -> None:
    signature = SIGNING_ANNA.key.sign("push", signed)
    assert is_signature(SIGNING_ANNA.key.public, what, shown, signature) == ((signed, "push") == (shown, what))


@given(st.binary(max_size=100))
def test_no_other_bytes_are_a_signature(signature: bytes) -> None:
    assert not is_signature(SIGNING_ANNA.key.public, "push", [b"a"], signature)
    assert not is_signature(signature, "push", [b"a"], SIGNING_ANNA.key.sign("push", [b"a"]))


def test_a_publication_shows_who_when_and_why() -> None:
    properties = sign_publication(SIGNING_ANNA.key, FENCE, ID, "the depot has moved")
    found = verify_publication(KEYS, FENCE, properties, SCOPE)
    assert (found.signer, found.name, found.reason) == (SIGNING_ANNA.key.key_id, "anna", "the depot has moved")
    assert drawn_at(properties[ID_PROPERTY]).timestamp() == 1_764_000_000


@pytest.mark.parametrize("changed", [{"kind": "tariff"}, {"key": "other@"}, {"body": b'{"a": 2}'}])
def test_no_part_of_a_publication_can_be_altered(changed: dict[str, str | bytes]) -> None:
    properties = sign_publication(SIGNING_ANNA.key, FENCE, ID, "why")
    with pytest.raises(SignatureRefused) as caught:
        verify_publication(KEYS, FENCE._replace(**changed), properties, SCOPE)  # type: ignore[arg-type]
    assert caught.value.fault is SignatureFault.ALTERED


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({ID_PROPERTY: next_publication_id(ID, 0, 7)}, SignatureFault.ALTERED),
        ({REASON: "another"}, SignatureFault.ALTERED),
        ({SIGNATURE: "AAAA"}, SignatureFault.UNSIGNED),
        ({SIGNATURE: "ü"}, SignatureFault.UNSIGNED),
        ({SIGNATURE: ""}, SignatureFault.UNSIGNED),
        ({SIGNER: "0" * 16}, SignatureFault.UNKNOWN_KEY),
        ({ID_PROPERTY: "1"}, SignatureFault.UNSIGNED),
    ],
)
def test_no_property_of_a_publication_can_be_altered(changed: dict[str, str], fault: SignatureFault) -> None:
    properties = sign_publication(SIGNING_ANNA.key, FENCE, ID, "why") | changed
    with pytest.raises(SignatureRefused) as caught:
        verify_publication(KEYS, FENCE, properties, SCOPE)
    assert caught.value.fault is fault


def test_what_was_published_while_a_key_was_valid_stays_right_afterwards() -> None:
    key, then = SIGNING_ANNA.key, drawn_at(ID)
    late = trusting(replace_until(then))
    properties = sign_publication(key, FENCE, ID, "why")
    with pytest.raises(SignatureRefused, match="not-valid-then"):
        verify_publication(late, FENCE, properties, SCOPE)
    earlier = sign_publication(key, FENCE, next_publication_id(None, 1_763_999_999_999, 7), "why")
    assert verify_publication(late, FENCE, earlier, SCOPE).name == "anna"


def replace_until(moment):
    return SIGNING_ANNA._replace(trusted=SIGNING_ANNA.trusted.model_copy(update={"valid_until": moment}))


@pytest.mark.parametrize("reason", ["", "x" * 501, "two\nlines"])
def test_a_reason_is_one_line(reason: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        sign_publication(SIGNING_ANNA.key, FENCE, ID, reason)


PUSHING_ANNA = operator("anna", tenants=("acme",), kinds=("settings",), valid_until=NOW + timedelta(days=1))
PUSH_KEYS = trusting(PUSHING_ANNA, operator("paul"))
BUS, TEXT = "acme/bus-17", b"[drain]\nwindow = 7\n"


def judged(text: bytes, device: str = BUS, now: datetime = NOW) -> str:
    try:
        return verify_push(PUSH_KEYS, read_signed_push(text), device, now).name
    except SignatureRefused as refused:
        return refused.fault


def test_what_is_signed_stays_toml_and_comes_out_as_it_went_in() -> None:
    signed = sign_push(PUSHING_ANNA.key, BUS, 5, TEXT)
    assert tomllib.loads(signed.decode()) == {"drain": {"window": 7}}
    push = read_signed_push(signed)
    assert (push.device, push.version, push.settings) == (BUS, 5, TEXT)
    assert judged(signed) == "anna"


@pytest.mark.parametrize(
    ("altered", "fault"),
    [
        ((b"window = 7", b"window = 8"), "altered"),
        ((b"version=5", b"version=6"), "altered"),
        ((b"acme/bus-17", b"acme/bus-18"), "for-another"),
        ((b"waybill-push 1", b"waybill-push 2"), "unsigned"),
        ((PUSHING_ANNA.key.key_id.encode(), b"0" * 16), "unknown-key"),
    ],
)
def test_whatever_is_altered_is_refused(altered: tuple[bytes, bytes], fault: str) -> None:
    assert judged(sign_push(PUSHING_ANNA.key, BUS, 5, TEXT).replace(*altered)) == fault


def test_one_line_of_megabytes_is_refused_without_being_read() -> None:
    assert judged(b"#waybill-push 1 device=" + b"a" * (8 << 20)) == "unsigned"


@pytest.mark.parametrize("version", [0, -1, 10**15])
def test_a_version_that_no_device_would_read_is_not_signed(version: int) -> None:
    with pytest.raises(ValueError, match="version"):
        sign_push(PUSHING_ANNA.key, BUS, version, TEXT)
