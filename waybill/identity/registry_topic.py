"""The device registry as it holds now, read from one compacted topic of each tenant: for gateways, daemons, commands.

Memory is bounded: of each device what `keep` makes of its entry, and of each tenant at most `max_devices`, and as many
more that may not connect: a registry that is full still locks out. What finds no room is refused and counted.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

import structlog

from waybill.daemon.process import close_within
from waybill.identity.errors import IdentityError
from waybill.identity.publication_id import (
    MAX_AHEAD_MS,
    PROPERTY,
    RANDOM_BITS,
    drawn_ms,
    is_far_ahead,
    next_publication_id,
)
from waybill.identity.registry import DeviceEntry, Precedence
from waybill.identity.registry_messages import (
    AHEAD,
    ARGUABLE,
    NO_ROOM,
    OTHER_TENANT,
    CheckSigned,
    DevicePublication,
    EntryRefused,
    SignEntry,
    devices_topic,
    entry_body,
    read_entry,
    tenant_of,
    unsigned,
)
from waybill.identity.tokens import InvalidToken, read_claims
from waybill.pulsar.compacted_topic import (
    RECEIVER_QUEUE,
    CompactedTopicReader,
    SharedClient,
    TopicMessage,
    TopicStanding,
)
from waybill.pulsar.pulsar_client import (
    AccessRefusal,
    PulsarAccess,
    PulsarAccessError,
    PulsarToken,
    access_refusal,
    close_quietly,
    connected_producer,
    open_pulsar_client,
)

# Messages of a refused access to a cluster.


def whom_named(access: PulsarAccess) -> str:
    """Who an access says that we are: the role and the file that names it."""
    where = f" ({access.token_file})" if access.token_file else ""
    try:
        token = PulsarToken(access)
        role = read_claims(token()).role if token else ""
    except (PulsarAccessError, InvalidToken):
        return f"the token{where}"
    if role:
        return f"the role {role}{where}"
    return (
        "an anonymous client, because [access] has no token,"
        if access.tls_certificate is None
        else str(access.tls_certificate)
    )


def refusal_text(refusal: AccessRefusal, problem: str, access: PulsarAccess, topic: str, right: str) -> str:
    """Why a cluster did not let us do something with a topic; `right`: what it needs, `consume` or `produce`."""
    match refusal:
        case AccessRefusal.NO_RIGHT:
            return (
                f"{whom_named(access)} may not {right} {topic}: name the token of a role that may, or grant "
                f"{right} to this one in the topology"
            )
        case AccessRefusal.UNKNOWN:
            return (
                f"the cluster refuses {whom_named(access)}: the token has expired, or another issuer signed it; "
                "create a new one (waybill pki token ROLE)"
            )
        case AccessRefusal.HELD:
            return f"another producer has {topic} for itself alone: see 'A hostile tenant' in docs/runbooks/access.md"
        case AccessRefusal.UNUSABLE:
            return problem


# Publication of registry entries, in order.

_TIMEOUT_S: Final = 10


class RegistryUnreachable(IdentityError):
    """No cluster takes or gives the registry now."""


class RegistryRefused(RegistryUnreachable):
    """A cluster does not let us read or change the registry, and waiting does not help."""


class ClockRefused(IdentityError):
    """This machine's clock is far from the cluster's: what it publishes would come in the wrong order."""


class PublicationUnknown(RegistryUnreachable):
    """An entry was sent, and no answer came: it may be published."""


class RegistryPublisher:
    """Publishes to one cluster, from which it is replicated to all: each entry to the topic of its tenant.

    `newest`: the id after which the next one comes. `topics_held`: how often another producer had a topic for itself.
    """

    def __init__(
        self,
        service_url: str,
        access: PulsarAccess,
        *,
        sign: SignEntry = unsigned,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._service_url, self._access, self._sign, self._clock = service_url, access, sign, clock
        self._client: Any = None
        self._producers: dict[str, Any] = {}
        self.newest: str | None = None
        self.topics_held: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def publish(self, entry: DeviceEntry, warrant: str = "") -> str:
        """Publishes an entry, and returns its publication id once it is persisted.

        Raises RegistryUnreachable where it was not sent, PublicationUnknown where it was, and RegistryRefused.

        `warrant`: of an operator, beside the signature of who has no right of its own.
        """
        import pulsar  # noqa: PLC0415 - an agent is installed without it

        # Drawn before it is sent: what was sent and not answered is published under the same order again.
        now_ms = round(self._clock() * 1000)
        # A clock that was ahead once must not date for ever what comes after it.
        newest = None if self.newest is not None and is_far_ahead(self.newest, now_ms) else self.newest
        self.newest = publication_id = next_publication_id(newest, now_ms, secrets.randbits(RANDOM_BITS))
        body = entry_body(entry)
        properties = {PROPERTY: publication_id, **self._sign(entry, body, publication_id, warrant)}
        is_sent, topic = False, devices_topic(entry.tenant)
        try:
            producer = self._producer(topic)
            is_sent = True
            producer.send(body, partition_key=entry.name, properties=properties)
        except (pulsar.PulsarException, PulsarAccessError, ValueError, RuntimeError) as error:
            # The next one begins anew: a client that got no producer would be left behind.
            self.close()
            if refusal := access_refusal(error):
                self.topics_held[topic] += refusal is AccessRefusal.HELD
                why = refusal_text(refusal, str(error), self._access, topic, "produce")
                raise RegistryRefused(f"{entry.name} is not published at {self._service_url}: {why}") from error
            if is_sent:
                unknown = f"whether {entry.name} is published at {self._service_url} is not known: {error}"
                raise PublicationUnknown(unknown) from error
            raise RegistryUnreachable(f"{entry.name} is not published at {self._service_url}: {error}") from error
        return publication_id

    def close(self) -> None:
        """Close the connection."""
        client, self._client, self._producers = self._client, None, {}
        close_quietly(client)

    def _producer(self, topic: str) -> Any:
        # At the first use: a command that is refused connects to nobody.
        if self._client is None:
            self._client = open_pulsar_client(self._service_url, self._access, timeout_s=_TIMEOUT_S)
        found = connected_producer(self._client, topic, self._producers.get(topic), _TIMEOUT_S)
        self._producers[topic] = found
        return found


MAX_DEVICES: Final = 1_000_000
# entries that nobody may have published are shown, and do not fill the memory
_MAX_OTHERS: Final = 20_000
_LOG = structlog.get_logger("registry")
_NOT_TAKEN = (
    "it is unknown here, but may be known elsewhere: {}; compare your `operators` and your clock with the regions'"
)
_LEAST_QUEUE: Final = 10
READ_AGAIN_S: Final = 60.0
"""For entries that were dated ahead the topic is not read again more often."""
T = TypeVar("T")
T_ = TypeVar("T_")


class _Held(NamedTuple, Generic[T]):
    precedence: Precedence
    kept: T


class Taken(NamedTuple):
    """A publication that holds now."""

    publication: DevicePublication


class Outranked(NamedTuple):
    """A publication that came after one of its device that holds against it.

    Compaction keeps what came last: the one that holds has to be published again.
    """

    publication: DevicePublication


class Repeated(NamedTuple):
    """The publication that holds, once more: to who connects again, or to everybody after another one came last."""

    publication: DevicePublication


BecameOfMessage = Taken | Outranked | Repeated | EntryRefused
"""What became of a message of the registry."""


class DeviceRegistry(Generic[T]):
    """What holds of each device, as `keep` has it. One at a time takes, any may look. `clock`: seconds since 1970.

    `max_devices`: of each tenant. Entries that are dated ahead of that clock are refused, and the topic is read again
    once it has come so far: it may be our own that was wrong. Messages are counted: `taken`, `outranked`, and
    `refused_by` the word of the reason.
    """

    def __init__(
        self,
        keep: Callable[[DevicePublication, TopicMessage], T],
        max_devices: int = MAX_DEVICES,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keep, self.max_devices, self._clock, self._monotonic = keep, max_devices, clock, monotonic
        self._held: defaultdict[str, dict[str, _Held[T]]] = defaultdict(dict)
        self._barred: dict[str, Precedence] = {}
        self._ahead, self._ahead_until_ms, self._read_again_s = 0, math.inf, 0.0
        self.taken = self.outranked = 0
        self.refused_by: Counter[str] = Counter()
        self.last_refused = ""

    def __len__(self) -> int:
        return sum(map(len, self._held.copy().values()))

    @property
    def problem(self) -> str:
        """That entries found no room, which lasts until a start with more of it, or are dated ahead; else empty."""
        refused = self.refused_by[NO_ROOM]
        if refused:
            return f"{refused} entries found no room: registry.max_devices is {self.max_devices}"
        if not self._ahead:
            return ""
        return (
            f"{self._ahead} entries are dated ahead of this machine's clock, and wait until it has come so far; compare"
            f" this machine's clock with the cluster's; the last that was refused: {self.last_refused}"
        )

    def get(self, name: str) -> T | None:
        """What is kept of a device; None: it is not known."""
        held = self._held.get(tenant_of(name), {}).get(name)
        return None if held is None else held.kept

    def precedence(self, name: str) -> Precedence | None:
        """The rank of what holds of a device; None: it is not known."""
        held = self._held.get(tenant_of(name), {}).get(name)
        return None if held is None else held.precedence

    def names(self, tenant: str) -> set[str]:
        """Every device of a tenant that is known."""
        return set(self._held.get(tenant, {}))

    def all(self) -> dict[str, T]:
        """What is kept of every device, by name."""
        return {name: held.kept for known in self._held.copy().values() for name, held in known.copy().items()}

    def take(self, message: TopicMessage, check_signed: CheckSigned | None, tenant: str = "") -> BecameOfMessage:
        """What became of a message. `tenant`: in whose topic it stands; "": in a topic of all."""
        key = message.key or ""
        if tenant not in ("", tenant_of(key)):
            return self._refuse(EntryRefused(key, f"it stands in the topic of the tenant {tenant}", OTHER_TENANT))
        try:
            made = read_entry(message.key, message.body, message.properties, self._clock() * 1000, check_signed)
        except Exception as error:  # noqa: BLE001 - whatever a message does to who reads it, it is none that counts
            refused = error if isinstance(error, EntryRefused) else EntryRefused(key, repr(error)[:200])
            if refused.reason == AHEAD:
                self._ahead += 1
                until_ms = drawn_ms(message.properties[PROPERTY]) - MAX_AHEAD_MS
                self._ahead_until_ms = min(self._ahead_until_ms, until_ms)
            return self._refuse(refused)
        return self.hold(made, message)

    def bar(self, name: str, rank: Precedence) -> None:
        """From here on nothing of lower rank is taken of a device, though what has this rank is not held."""
        self._barred[name] = rank

    def is_to_be_read_again(self) -> bool:
        """Whether our clock has come so far that something is ahead of it no more; asked by who reads the topic."""
        is_due = self._clock() * 1000 >= self._ahead_until_ms and self._monotonic() >= self._read_again_s
        if is_due:
            self._ahead, self._ahead_until_ms = 0, math.inf
            self._read_again_s = self._monotonic() + READ_AGAIN_S
        return is_due

    def hold(self, made: DevicePublication, message: TopicMessage) -> BecameOfMessage:
        """What became of a publication that is right, and its message: whichever holds is decided by rank alone."""
        name, rank = made.entry.name, made.precedence
        known = self._held[made.entry.tenant]
        held, barred = known.get(name), self._barred.get(name)
        if held is not None and rank == held.precedence:
            return Repeated(made)
        if (held is not None and rank < held.precedence) or (barred is not None and rank < barred):
            self.outranked += 1
            return Outranked(made)
        # A device that is known keeps its place, and who is locked out has a reserve: no flood of names hides them.
        room = self.max_devices if made.entry.may_connect else 2 * self.max_devices
        if held is None and len(known) >= room:
            return self._refuse(EntryRefused(name, f"{len(known)} devices are remembered already", NO_ROOM))
        known[name] = _Held(rank, self._keep(made, message))
        self._barred.pop(name, None)
        self.taken += 1
        return Taken(made)

    def _refuse(self, refused: EntryRefused) -> EntryRefused:
        self.refused_by[refused.reason] += 1
        self.last_refused = str(refused)
        return refused


class RegistryReader(Generic[T]):
    """Follows the topics of tenants into a registry, in a thread for each; one of them calls at a time.

    `on_message` hears of what holds, and of what does not. An entry in the topic of another tenant is refused and
    counted, and `on_message` does not hear of it. `on_standing` and `on_begin` get the tenant first.
    """

    def __init__(
        self,
        service_url: str,
        access: PulsarAccess,
        registry: DeviceRegistry[T],
        *,
        tenants: Collection[str],
        check_signed: CheckSigned | None = None,
        on_message: Callable[[TopicMessage, BecameOfMessage], object] = lambda _, __: None,
        on_standing: Callable[[str, TopicStanding], object] = lambda _, __: None,
        is_compacted: bool = True,
        on_begin: Callable[[str], object] = lambda _: None,
        starts_anew: Callable[[], bool] = lambda: False,
        loss_look_s: float = math.inf,
        names: frozenset[str] | None = None,
    ) -> None:
        """`names`: of which devices alone messages are taken; None: of all.

        It reads all topics again when `starts_anew` says so, and for entries that were ahead of our clock.
        """
        self.registry, self._names = registry, names
        self.others: dict[str, None] = {}
        """Devices of which messages came that were not taken, the first so many: what somebody may have meant."""
        self.not_taken: dict[str, str] = {}
        """Of the devices that are asked about those of which an entry came that another reader may take, and why."""
        self._check_signed, self._on_message, self._starts_anew = check_signed, on_message, starts_anew
        self._lock = threading.RLock()
        self._to_read_again: set[str] = set()
        client = SharedClient(service_url, access)
        self._readers = {
            tenant: CompactedTopicReader(
                service_url,
                access,
                devices_topic(tenant),
                partial(self._locked, self._take, tenant),
                partial(self._locked, on_standing, tenant),
                is_compacted=is_compacted,
                on_begin=partial(self._locked, on_begin, tenant),
                starts_anew=partial(self._locked, self._is_to_be_read_again, tenant),
                loss_look_s=loss_look_s,
                client=client,
                # Together they hold no more than one reader of one topic.
                receiver_queue=max(RECEIVER_QUEUE // len(tenants), _LEAST_QUEUE),
            )
            for tenant in tenants
        }

    @property
    def standing(self) -> TopicStanding:
        """How far it has read: current if every topic is; a topic that is not is named."""
        each = [one.standing for one in self._readers.values()]
        away = [one for one in each if not one.is_current]
        if not each:
            return TopicStanding(is_current=True, was_current=True)
        first = next((one for one in away if one.refusal is not None), (away or each)[0])
        more = f", and {len(away) - 1} more topics" if len(away) > 1 else ""
        return first._replace(
            is_current=not away,
            was_current=all(one.was_current for one in each),
            unreachable_since_s=min((one.unreachable_since_s for one in each if one.unreachable_since_s), default=None),
            messages=sum(one.messages for one in each),
            problem=first.problem and f"{first.topic}: {first.problem}{more}",
            unhandled=sum(one.unhandled for one in each),
            last_unhandled=next((one.last_unhandled for one in each if one.last_unhandled), ""),
        )

    @property
    def is_running(self) -> bool:
        """Whether all of its threads run."""
        return all(one.is_running for one in self._readers.values())

    def is_current(self, tenant: str) -> bool:
        """Whether the topic of a tenant is read to its end now."""
        return tenant in self._readers and self._readers[tenant].standing.is_current

    def was_read(self, tenant: str) -> bool:
        """Whether all of a tenant's devices were known once; of a tenant without a topic, whether all others' were."""
        found = self._readers.get(tenant)
        return (self if found is None else found).standing.was_current

    def start(self) -> None:
        """Begin to read."""
        for one in self._readers.values():
            one.start()

    def close(self) -> None:
        """Stop reading."""
        close_within([one.close for one in self._readers.values()])

    def _locked(self, call: Callable[..., T_], *arguments: object) -> T_:
        with self._lock:
            return call(*arguments)

    def _is_to_be_read_again(self, tenant: str) -> bool:
        # Both are asked: each may have something to do. Whoever hears it first hears it for all topics.
        if any([self._starts_anew(), self.registry.is_to_be_read_again()]):
            self._to_read_again.update(self._readers)
        is_due = tenant in self._to_read_again
        self._to_read_again.discard(tenant)
        return is_due

    def _take(self, tenant: str, message: TopicMessage) -> None:
        # To judge a message costs more than to read it: a command for one device skips those of all others.
        if self._names is not None and message.key not in self._names:
            if message.key and len(self.others) < _MAX_OTHERS:
                self.others[message.key] = None
            return
        became = self.registry.take(message, self._check_signed, tenant)
        if isinstance(became, EntryRefused):
            _LOG.warning("registry entry refused", problem=str(became))
            if became.reason == OTHER_TENANT:
                return
            if self._names is not None and became.key in self._names and became.reason in ARGUABLE:
                self.not_taken[became.key] = _NOT_TAKEN.format(became)
        self._on_message(message, became)
