"""The device registry, read from one compacted topic of each tenant: for gateways, daemons and commands.

Memory is bounded: for each device the value that `keep` returns, and for each tenant at most `max_devices`, and as many
more that may not connect, so that a full registry still locks devices out. Other entries are refused and counted.
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
from waybill.identity.registry import DeviceEntry, Precedence
from waybill.identity.registry_messages import (
    AHEAD,
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
from waybill.identity.signatures import (
    ID_PROPERTY,
    MAX_AHEAD_MS,
    RANDOM_BITS,
    drawn_ms,
    is_far_ahead,
    next_publication_id,
)
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
    access_refusal,
    close_quietly,
    connected_producer,
    open_pulsar_client,
)

# Messages of a refused access to a cluster.


def refusal_text(refusal: AccessRefusal, problem: str, access: PulsarAccess, topic: str, right: str) -> str:
    """Why a cluster refused access to a topic. `right`: the one that is needed, `consume` or `produce`."""
    if refusal is AccessRefusal.UNUSABLE:
        return problem
    if refusal is AccessRefusal.HELD:
        return f"another producer has {topic} for itself alone: see 'A hostile tenant' in docs/runbooks/access.md"
    who = f"the role {access.role}" if access.role else "a client without a token"
    if refusal is AccessRefusal.NO_RIGHT:
        return f"{who} may not {right} {topic}: use the token of another role, or grant {right} in the topology"
    return f"the cluster refuses {who}: the token has expired, or another issuer signed it (waybill pki token ROLE)"


# Publication of registry entries, in order.

_TIMEOUT_S: Final = 10


class RegistryUnreachable(IdentityError):
    """The registry cannot be read or changed now."""


class RegistryRefused(RegistryUnreachable):
    """A cluster refuses access to the registry; waiting does not help."""


class ClockRefused(IdentityError):
    """This machine's clock is far from the cluster's: its publications would have the wrong order."""


class PublicationUnknown(RegistryUnreachable):
    """An entry was sent and not acknowledged: it may be published."""


class RegistryPublisher:
    """Publishes each entry to the topic of its tenant in one cluster, which replicates it to all.

    `newest`: the next id comes after it. `topics_held`: how often another producer had a topic exclusively.
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
        """Publish an entry; returns its publication id once it is persisted.

        `warrant`: an operator's, for a key that has no right of its own. Raises RegistryUnreachable where it was not
        sent, PublicationUnknown where it was, and RegistryRefused.
        """
        import pulsar  # noqa: PLC0415 - an agent is installed without it

        now_ms = round(self._clock() * 1000)
        # An id from a clock that was ahead once must not date every later one.
        newest = None if self.newest is not None and is_far_ahead(self.newest, now_ms) else self.newest
        self.newest = publication_id = next_publication_id(newest, now_ms, secrets.randbits(RANDOM_BITS))
        body = entry_body(entry)
        properties = {ID_PROPERTY: publication_id, **self._sign(entry, body, publication_id, warrant)}
        is_sent, topic = False, devices_topic(entry.tenant)
        try:
            producer = self._producer(topic)
            is_sent = True
            producer.send(body, partition_key=entry.name, properties=properties)
        except (pulsar.PulsarException, PulsarAccessError, ValueError, RuntimeError) as error:
            # The next entry opens a new client.
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
        client, self._client, self._producers = self._client, None, {}
        close_quietly(client)

    def _producer(self, topic: str) -> Any:
        if self._client is None:
            self._client = open_pulsar_client(self._service_url, self._access, timeout_s=_TIMEOUT_S)
        found = connected_producer(self._client, topic, self._producers.get(topic), _TIMEOUT_S)
        self._producers[topic] = found
        return found


MAX_DEVICES: Final = 1_000_000
_LOG = structlog.get_logger("registry")
_LEAST_QUEUE: Final = 10
READ_AGAIN_S: Final = 60.0
"""The topic is not read again more often for entries that were dated ahead."""
T = TypeVar("T")
T_ = TypeVar("T_")


class _Held(NamedTuple, Generic[T]):
    precedence: Precedence
    kept: T


class EntryInForce(NamedTuple):
    """A publication that is in force now."""

    publication: DevicePublication


class EntrySuperseded(NamedTuple):
    """A publication that came after one of higher rank.

    Compaction keeps the last one, so the one of higher rank has to be published again.
    """

    publication: DevicePublication


class EntryDuplicate(NamedTuple):
    """The publication in force, once more: after a reconnection, or published again."""

    publication: DevicePublication


EntryResult = EntryInForce | EntrySuperseded | EntryDuplicate | EntryRefused
"""The result of a message of the registry."""


class DeviceRegistry(Generic[T]):
    """The entry in force of each device, as `keep` returns it. One thread calls `take`, any may read.

    `max_devices`: of each tenant. `clock`: seconds since 1970. Entries that are dated ahead of it are refused, and the
    topic is read again once the clock has come so far: our own clock may have been wrong. Messages are counted as
    `taken`, `outranked`, and `refused_by` reason.
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
        """Entries without room (until a restart with more of it) or dated ahead; else empty."""
        refused = self.refused_by[NO_ROOM]
        if refused:
            return f"{refused} entries found no room: registry.max_devices is {self.max_devices}"
        if not self._ahead:
            return ""
        return (
            f"{self._ahead} entries are dated ahead of this machine's clock, and wait until it has come so far: compare"
            f" it with the cluster's; the last one: {self.last_refused}"
        )

    def get(self, name: str) -> T | None:
        """The kept value of a device; None: it is unknown."""
        held = self._held.get(tenant_of(name), {}).get(name)
        return None if held is None else held.kept

    def precedence(self, name: str) -> Precedence | None:
        """The rank of the entry in force; None: the device is unknown."""
        held = self._held.get(tenant_of(name), {}).get(name)
        return None if held is None else held.precedence

    def names(self, tenant: str) -> set[str]:
        return set(self._held.get(tenant, {}))

    def all(self) -> dict[str, T]:
        return {name: held.kept for known in self._held.copy().values() for name, held in known.copy().items()}

    def take(self, message: TopicMessage, check_signed: CheckSigned | None, tenant: str = "") -> EntryResult:
        """Take a message. `tenant`: the tenant of its topic; "": a topic of all tenants."""
        key = message.key or ""
        if tenant not in ("", tenant_of(key)):
            return self._refuse(EntryRefused(key, f"it stands in the topic of the tenant {tenant}", OTHER_TENANT))
        try:
            made = read_entry(message.key, message.body, message.properties, self._clock() * 1000, check_signed)
        except Exception as error:  # noqa: BLE001 - whatever a message does to who reads it, it is none that counts
            refused = error if isinstance(error, EntryRefused) else EntryRefused(key, repr(error)[:200])
            if refused.reason == AHEAD:
                self._ahead += 1
                until_ms = drawn_ms(message.properties[ID_PROPERTY]) - MAX_AHEAD_MS
                self._ahead_until_ms = min(self._ahead_until_ms, until_ms)
            return self._refuse(refused)
        return self.hold(made, message)

    def bar(self, name: str, rank: Precedence) -> None:
        """Refuse entries of lower rank from now on, although the entry of this rank is not held."""
        self._barred[name] = rank

    def is_to_be_read_again(self) -> bool:
        """Whether the clock has reached the date of an entry that was ahead."""
        is_due = self._clock() * 1000 >= self._ahead_until_ms and self._monotonic() >= self._read_again_s
        if is_due:
            self._ahead, self._ahead_until_ms = 0, math.inf
            self._read_again_s = self._monotonic() + READ_AGAIN_S
        return is_due

    def hold(self, made: DevicePublication, message: TopicMessage) -> EntryResult:
        """Take a valid publication: rank alone decides which one is in force."""
        name, rank = made.entry.name, made.precedence
        known = self._held[made.entry.tenant]
        held, barred = known.get(name), self._barred.get(name)
        if held is not None and rank == held.precedence:
            return EntryDuplicate(made)
        if (held is not None and rank < held.precedence) or (barred is not None and rank < barred):
            self.outranked += 1
            return EntrySuperseded(made)
        # Known devices keep their place and lock-outs have a reserve: no flood of names displaces them.
        room = self.max_devices if made.entry.may_connect else 2 * self.max_devices
        if held is None and len(known) >= room:
            return self._refuse(EntryRefused(name, f"{len(known)} devices are remembered already", NO_ROOM))
        known[name] = _Held(rank, self._keep(made, message))
        self._barred.pop(name, None)
        self.taken += 1
        return EntryInForce(made)

    def _refuse(self, refused: EntryRefused) -> EntryRefused:
        self.refused_by[refused.reason] += 1
        self.last_refused = str(refused)
        return refused


class RegistryReader(Generic[T]):
    """Follows the topics of tenants into a registry, in a thread for each; only one of them calls at a time.

    `on_message` is not called for an entry in the topic of another tenant, which is refused and counted.
    `on_standing` and `on_begin` get the tenant first. `names`: only these devices are read; None: all. All topics are
    read again when `starts_anew` returns true, and for entries that were ahead of our clock.
    """

    def __init__(
        self,
        service_url: str,
        access: PulsarAccess,
        registry: DeviceRegistry[T],
        *,
        tenants: Collection[str],
        check_signed: CheckSigned | None = None,
        on_message: Callable[[TopicMessage, EntryResult], object] = lambda _, __: None,
        on_standing: Callable[[str, TopicStanding], object] = lambda _, __: None,
        is_compacted: bool = True,
        on_begin: Callable[[str], object] = lambda _: None,
        starts_anew: Callable[[], bool] = lambda: False,
        loss_look_s: float = math.inf,
        names: frozenset[str] | None = None,
    ) -> None:
        self.registry, self._names = registry, names
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
                # Together they hold as much as one reader of one topic.
                receiver_queue=max(RECEIVER_QUEUE // len(tenants), _LEAST_QUEUE),
            )
            for tenant in tenants
        }

    @property
    def standing(self) -> TopicStanding:
        """Current if every topic is; names the first one that is not."""
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
        return all(one.is_running for one in self._readers.values())

    def is_current(self, tenant: str) -> bool:
        """Whether the topic of a tenant is read to its end."""
        return tenant in self._readers and self._readers[tenant].standing.is_current

    def was_read(self, tenant: str) -> bool:
        """Whether the topic of a tenant, or all topics for an unknown tenant, was read to its end once."""
        found = self._readers.get(tenant)
        return (self if found is None else found).standing.was_current

    def start(self) -> None:
        for one in self._readers.values():
            one.start()

    def close(self) -> None:
        close_within([one.close for one in self._readers.values()])

    def _locked(self, call: Callable[..., T_], *arguments: object) -> T_:
        with self._lock:
            return call(*arguments)

    def _is_to_be_read_again(self, tenant: str) -> bool:
        # Both are called: each has an effect. The first topic decides for all.
        if any([self._starts_anew(), self.registry.is_to_be_read_again()]):
            self._to_read_again.update(self._readers)
        is_due = tenant in self._to_read_again
        self._to_read_again.discard(tenant)
        return is_due

    def _take(self, tenant: str, message: TopicMessage) -> None:
        # Checking a message costs more than reading it.
        if self._names is not None and message.key not in self._names:
            return
        became = self.registry.take(message, self._check_signed, tenant)
        if isinstance(became, EntryRefused):
            _LOG.warning("registry entry refused", problem=str(became))
            if became.reason == OTHER_TENANT:
                return
        self._on_message(message, became)
