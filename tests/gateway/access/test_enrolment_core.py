"""The enrolment desk: a claim is good once, whatever is sent, in whichever order, and wherever the process ends."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access.enrolment import (
    MAX_VALID_CERTIFICATES,
    REPEAT_WITHIN,
    SENDER_INTERVAL_S,
    TENANT_BURST,
    EnrolmentCore,
    EnrolmentEffect,
    EnrolmentRates,
    OpenTokens,
    PublishEntry,
)
from tests.examples import examples
from waybill.identity.authority import (
    Authority,
    Issued,
    KeyPair,
    issue_device,
    make_regional,
    make_request,
    make_root,
    read_certificates,
    with_chain,
)
from waybill.identity.claims import token_id
from waybill.identity.enrolment import (
    EnrolmentAnswer,
    EnrolmentGranted,
    EnrolmentRefused,
    EnrolmentRequest,
    RefusedBecause,
    decode_enrolment_answer,
    encode_enrolment_request,
)
from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.registry import (
    Claim,
    DeviceChange,
    DeviceEntry,
    DeviceState,
    expect,
    revoke,
    suspend,
)
from waybill.identity.registry_messages import DevicePublication

NOW = datetime(2027, 1, 5, 9, tzinfo=UTC)
HASH = "$7$101$c2FsdA==$" + "A" * 86 + "=="
DEVICE, CLAIM = "acme/bus-1", f"claim@{token_id(HASH)}"
ROOT_KEY, KEY, OTHER_KEY = (KeyPair.generate() for _ in range(3))


def authority() -> Authority:
    root = make_root("root", ROOT_KEY, now=NOW, serial=1, lifetime=timedelta(days=3650))
    issued = make_regional(root, "eu", KEY.public, now=NOW, serial=2, lifetime=timedelta(days=1000))
    return Authority(issued.certificate, KEY)


AUTHORITY = authority()


class Signer:
    """The authority, and what it signed; it outlives the process as a folder does."""

    authority = AUTHORITY

    def __init__(self) -> None:
        self.signed: dict[int, x509.Certificate] = {}
        self.fails = False

    def device(self, request: bytes, tenant: str, device: str, *, now: datetime, lifetime: timedelta) -> Issued:
        if self.fails:
            raise OSError("no space left on device")
        serial = 100 + len(self.signed)
        issued = issue_device(AUTHORITY, request, tenant, device, now=now, serial=serial, lifetime=lifetime)
        self.signed[serial] = issued.certificate
        return issued

    def recorded(self, serial: int) -> Issued | None:
        return with_chain(self.signed[serial], AUTHORITY) if serial in self.signed else None


class Registry:
    def __init__(self, *entries: DeviceEntry) -> None:
        self.published = {entry.name: entry for entry in entries}
        self.seen = dict(self.published)

    def publication(self, name: str) -> DevicePublication | None:
        return DevicePublication(self.seen[name], "019e") if name in self.seen else None

    def publish(self, entry: DeviceEntry) -> None:
        self.published[entry.name] = entry

    def catch_up(self) -> None:
        self.seen = dict(self.published)


class World:
    """A desk between a registry and a signer; `restart` is SIGKILL, and what is on disk and in Pulsar stays."""

    def __init__(self, *entries: DeviceEntry) -> None:
        self.registry, self.signer = Registry(*entries), Signer()
        self.now, self.number = NOW, 0
        self.given: list[bytes] = []
        self.key_ends: datetime | None = None
        self.restart()

    def restart(self) -> None:
        self.registry.catch_up()
        registry, signer = cast("Any", self.registry), cast("Any", self.signer)
        self.desk = EnrolmentCore("eu", timedelta(days=30), registry, signer, EnrolmentRates(), self.check_right)

    def check_right(self, entry: DeviceEntry, now: datetime) -> None:
        if self.key_ends is not None and now >= self.key_ends:
            raise SignatureRefused(SignatureFault.NOT_VALID_THEN, entry.name)

    def request(self, key: KeyPair = OTHER_KEY, name: str = DEVICE) -> bytes:
        self.number += 1
        return encode_enrolment_request(EnrolmentRequest(f"{self.number:032x}", make_request(key, name)))

    def send(self, payload: bytes, sender: str = CLAIM, *, is_factory: bool | None = None) -> list[EnrolmentEffect]:
        """`is_factory` None: by the door of its kind."""
        if is_factory is None:
            is_factory = sender.startswith("claim@") and not sender.startswith("claim@token-")
        return self.desk.on_request(sender, payload, now=self.now, now_s=self.now.timestamp(), is_factory=is_factory)

    def perform(self, effects: list[EnrolmentEffect]) -> EnrolmentAnswer | None:
        """Does what the desk wants, in order; the last answer."""
        answer = None
        for effect in effects:
            if isinstance(effect, PublishEntry):
                self.registry.publish(effect.entry)
                self.registry.catch_up()
                answer = self.perform(self.desk.on_persisted(effect.entry.name)) or answer
            else:
                answer = decode_enrolment_answer(effect.payload)
                if isinstance(answer, EnrolmentGranted):
                    self.given.append(answer.chain_pem)
        return answer

    def ask(self, key: KeyPair = OTHER_KEY, name: str = DEVICE, sender: str = CLAIM) -> EnrolmentAnswer | None:
        return self.perform(self.send(self.request(key, name), sender))

    @property
    def entry(self) -> DeviceEntry:
        return self.registry.published[DEVICE]


def expected(**more: object) -> DeviceEntry:
    claim = Claim(id=token_id(HASH), password_hash=HASH, until=NOW + timedelta(days=7))
    entry = expect("acme", "bus-1", region="eu", claim=claim, change=DeviceChange(NOW, "ana", "new bus"))
    return entry.model_copy(update=more)


def refusal(answer: EnrolmentAnswer | None) -> RefusedBecause:
    assert isinstance(answer, EnrolmentRefused), answer
    return answer.reason


def granted(answer: EnrolmentAnswer | None) -> x509.Certificate:
    assert isinstance(answer, EnrolmentGranted), answer
    return read_certificates(answer.chain_pem)[0]


def test_a_claim_gets_a_certificate_of_its_device_and_the_registry_has_it_first() -> None:
    world = World(expected())
    effects = world.send(world.request())
    assert [type(one) for one in effects] == [PublishEntry], "no answer before the registry has the serial"
    certificate = granted(world.perform(effects))
    assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == DEVICE
    assert certificate.public_key() == OTHER_KEY.public
    assert world.entry.state is DeviceState.ACTIVE
    assert [int(one.serial, 16) for one in world.entry.certificates] == [certificate.serial_number]
    assert world.desk.outcomes == {"enrolled": 1}


def test_nothing_is_signed_with_a_key_whose_entries_nobody_takes_and_the_claim_stays_open() -> None:
    world = World(expected())
    world.key_ends = NOW
    assert refusal(world.ask()) is RefusedBecause.UNAVAILABLE
    assert not world.signer.signed
    world.key_ends = None
    granted(world.ask())


def test_what_the_registry_was_not_read_back_with_is_not_given() -> None:
    world = World(expected())
    world.send(world.request())
    assert refusal(world.perform(world.desk.on_not_taken(DEVICE, "us refuses it"))) is RefusedBecause.UNAVAILABLE
    effects = world.send(world.request())
    world.registry.seen[DEVICE] = expected(state=DeviceState.ACTIVE, version=3)
    answer = world.perform(world.desk.on_persisted(DEVICE))
    assert refusal(answer) is RefusedBecause.UNAVAILABLE, "somebody else published it without the certificate"
    assert isinstance(effects[0], PublishEntry)


def test_the_same_key_gets_the_same_certificate_again_for_a_while_and_another_key_never() -> None:
    world = World(expected())
    first = granted(world.ask())
    assert granted(world.ask()) == first
    assert refusal(world.ask(KeyPair.generate())) is RefusedBecause.CLAIM_USED
    world.now += REPEAT_WITHIN
    assert refusal(world.ask()) is RefusedBecause.CLAIM_USED, "a replayed request"
    assert len(world.signer.signed) == 1
    assert world.desk.outcomes == {"enrolled": 1, "repeated": 1, "claim-used": 2}


def test_of_two_devices_with_one_token_at_once_one_is_enrolled() -> None:
    world = World(expected())
    first = world.send(world.request())
    assert refusal(world.perform(world.send(world.request(KeyPair.generate())))) is RefusedBecause.CLAIM_USED
    assert granted(world.perform(first)).public_key() == OTHER_KEY.public
    assert len(world.signer.signed) == 1


@pytest.mark.parametrize(
    ("reason", "entry", "name", "sender"),
    [
        (RefusedBecause.UNKNOWN_CLAIM, expected(), DEVICE, "claim@SN-unknown"),
        (RefusedBecause.UNKNOWN_CLAIM, expected(claim=None), DEVICE, CLAIM),
        (RefusedBecause.UNKNOWN_CLAIM, expected(), "acme/bus-2", CLAIM),
        (RefusedBecause.UNKNOWN_CLAIM, expected(), "rival/bus-1", CLAIM),
        (RefusedBecause.OTHER_REGION, expected(region="us"), DEVICE, CLAIM),
        (RefusedBecause.NOT_ACTIVE, expected(state=DeviceState.SUSPENDED), DEVICE, CLAIM),
        (RefusedBecause.NOT_ACTIVE, expected(state=DeviceState.REVOKED), DEVICE, CLAIM),
        (RefusedBecause.NOT_ACTIVE, expected(), DEVICE, DEVICE),
        (RefusedBecause.NOT_ACTIVE, expected(state=DeviceState.SUSPENDED), DEVICE, DEVICE),
        (RefusedBecause.UNKNOWN_CLAIM, expected(), DEVICE, "gateway@eu-1"),
    ],
)
def test_what_may_not_have_a_certificate_is_refused_with_its_reason_and_counted(
    reason: RefusedBecause, entry: DeviceEntry, name: str, sender: str
) -> None:
    world = World(entry)
    assert refusal(world.ask(name=name, sender=sender)) is reason
    assert world.desk.outcomes == {reason: 1}
    assert not world.signer.signed


def test_an_authority_that_cannot_sign_says_so_and_the_claim_stays_open() -> None:
    world = World(expected())
    world.signer.fails = True
    assert refusal(world.ask()) is RefusedBecause.UNAVAILABLE
    world.signer.fails = False
    granted(world.ask())


def test_a_device_renews_with_a_new_key_and_its_former_certificate_stays_listed() -> None:
    world = World(expected())
    former = granted(world.ask())
    world.now += timedelta(days=20)
    key = KeyPair.generate()
    renewed = granted(world.ask(key, sender=DEVICE))
    assert renewed.public_key() == key.public
    serials = [int(one.serial, 16) for one in world.entry.certificates]
    assert serials == [former.serial_number, renewed.serial_number]
    assert granted(world.ask(key, sender=DEVICE)) == renewed, "its answer was lost"
    world.now += REPEAT_WITHIN
    assert refusal(world.ask(key, sender=DEVICE)) is RefusedBecause.OLD_KEY, "it was replayed"
    assert refusal(world.ask(OTHER_KEY, sender=DEVICE)) is RefusedBecause.OLD_KEY
    world.now += timedelta(days=11)
    granted(world.ask(KeyPair.generate(), sender=DEVICE))
    serials = [int(one.serial, 16) for one in world.entry.certificates]
    assert serials == [renewed.serial_number, renewed.serial_number + 1], "what has ended is let go of"


def test_a_device_has_a_bounded_number_of_valid_certificates() -> None:
    world = World(expected())
    granted(world.ask())
    for _ in range(MAX_VALID_CERTIFICATES - 1):
        world.now += timedelta(seconds=SENDER_INTERVAL_S)
        granted(world.ask(KeyPair.generate(), sender=DEVICE))
    assert refusal(world.ask(KeyPair.generate(), sender=DEVICE)) is RefusedBecause.TOO_MANY


@pytest.mark.parametrize("change", [revoke, suspend])
def test_a_device_that_was_locked_out_while_its_entry_was_published_gets_no_certificate(
    change: Callable[[DeviceEntry, DeviceChange], DeviceEntry],
) -> None:
    world = World(expected())
    effects = world.send(world.request())
    world.registry.publish(change(expected(), DeviceChange(NOW, "ana", "stolen")))
    world.registry.catch_up()
    assert refusal(world.perform(world.desk.on_persisted(DEVICE))) is RefusedBecause.NOT_ACTIVE
    assert isinstance(effects[0], PublishEntry)


def test_a_tenant_whose_devices_ask_as_often_as_they_may_takes_nothing_from_another() -> None:
    rates, looked_at = EnrolmentRates(), 0
    for second in range(120):
        for number in range(60):
            if rates.try_sender(f"zeta/bus-{(second * 60 + number) % 300}", second + number / 60):
                rates.try_tenant("zeta", second + number / 60)
        looked_at += rates.try_sender(f"acme/bus-{second}", second + 0.999)
        assert rates.try_tenant("acme", second + 0.999)
    assert looked_at == 120


def test_a_flood_of_claims_that_nobody_is_expected_with_takes_nothing_from_who_is() -> None:
    world = World(expected())
    answers = [world.ask(sender=f"claim@SN-{number}") for number in range(25 + TENANT_BURST)]
    assert [refusal(one) for one in answers].count(RefusedBecause.TOO_OFTEN) == 25
    granted(world.ask())


steps = st.lists(
    st.tuples(
        st.sampled_from(["one", "two"]),
        st.sampled_from(["whole", "killed before publishing", "killed before answering", "answer lost"]),
    ),
    max_size=8,
)


@given(steps)
@settings(max_examples=examples(150), deadline=None)
def test_killed_between_any_two_steps_a_claim_enrols_one_key(steps: list[tuple[str, str]]) -> None:
    """Law: all certificates that ever left are one and the same, and the registry has its serial."""
    world, keys = World(expected()), {"one": KEY, "two": OTHER_KEY}
    for who, how in steps:
        effects = world.send(world.request(keys[who]))
        if how == "killed before publishing":
            world.restart()
        elif how == "killed before answering":
            for effect in effects:
                if isinstance(effect, PublishEntry):
                    world.registry.publish(effect.entry)
            world.restart()
        else:
            world.perform(effects)
    assert len(set(world.given)) <= 1
    for chain in world.given:
        serial = read_certificates(chain)[0].serial_number
        assert [int(one.serial, 16) for one in world.entry.certificates] == [serial]


def with_serial(tenant: str, device: str, *, at: datetime = NOW) -> DeviceEntry:
    claim, by = Claim(id="SN-1"), DeviceChange(at, "ana", "new")
    return expect(tenant, device, region="eu", claim=claim, change=by)


def test_a_claim_that_another_tenant_names_too_enrols_the_device_that_asks() -> None:
    for entries in ([with_serial("acme", "bus-1"), with_serial("zeta", "thief")], [with_serial("zeta", "thief")]):
        world = World(*entries)
        mine = world.ask(sender="claim@SN-1")
        if len(entries) == 1:
            assert refusal(mine) is RefusedBecause.UNKNOWN_CLAIM
        else:
            granted(mine)


def test_who_names_anothers_claim_takes_nothing_of_that_tenants_share() -> None:
    mine, thief = with_serial("acme", "bus-1"), with_serial("zeta", "thief")
    world = World(mine, thief)
    for _ in range(200):  # zeta's own share is used up
        world.desk.rates.try_tenant("zeta", 0.0)
    granted(world.ask(sender="claim@SN-1"))


@pytest.mark.parametrize("claim", [CLAIM, "claim@SN-1"])
def test_a_claim_is_good_at_the_door_of_its_kind_alone(claim: str) -> None:
    world = World(expected() if claim == CLAIM else with_serial("acme", "bus-1"))
    at_the_other = world.send(world.request(), claim, is_factory=claim == CLAIM)
    assert refusal(world.perform(at_the_other)) is RefusedBecause.UNKNOWN_CLAIM
    granted(world.ask(sender=claim))


def test_who_signs_a_tokens_name_takes_nothing_of_the_share_and_turns_of_who_has_its_text() -> None:
    world = World(expected())
    for _ in range(2 * TENANT_BURST):
        world.send(world.request(), CLAIM, is_factory=True)
    granted(world.ask())


CHANGE = DeviceChange(NOW, "ana", "stolen")
OPEN = {CLAIM: HASH}


def passwords(entry: DeviceEntry, at: datetime = NOW, region: str = "eu") -> dict[str, str]:
    tokens = OpenTokens(region)
    tokens.take(entry, NOW)
    return tokens.passwords(at)


def enrolled() -> DeviceEntry:
    world = World(expected())
    world.ask()
    return world.entry


def test_a_token_logs_in_while_it_is_open_and_for_a_while_after_it_was_used() -> None:
    assert passwords(expected()) == OPEN
    assert passwords(expected(), region="us") == {}
    assert passwords(expected(), NOW + timedelta(days=7)) == {}
    assert passwords(enrolled()) == OPEN
    assert passwords(enrolled(), NOW + REPEAT_WITHIN) == {}
    assert passwords(revoke(enrolled(), CHANGE)) == {}
    assert passwords(expected(claim=Claim(id="SN-1"))) == {}


def test_a_token_that_opens_is_used_or_ends_by_a_change_of_its_device_changes_something() -> None:
    tokens = OpenTokens("eu")
    assert tokens.take(expected(), NOW)
    assert not tokens.take(expected(), NOW), "the same again"
    assert tokens.take(enrolled(), NOW)
    assert tokens.take(revoke(enrolled(), CHANGE), NOW)
