"""Reads versions of reference data from files, and publishes them. Without Spark."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import pulsar

from cloud_jobs.billing.contracts import StatedContract, contracts_of_toml, usable_contract
from cloud_jobs.errors import CloudError, ReferenceFileError, ReferenceNotPublished
from geo.alerts import AlertError, usable_rule
from geo.reference.in_force import Usable, usable_fence
from geo.reference.messages import MAX_BYTES, MAX_VALUES, NAMESPACE, TOPICS, Kind, stated_version
from geo.reference.moments import UNKNOWN_BEGINNING, beginning
from geo.spatial import FenceError
from geo.spatial.geojson import Feature, feature_notices, fence_of, kind_of, read_features
from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.process import close_within
from waybill.identity.signatures import (
    ID_PROPERTY,
    RANDOM_BITS,
    OperatorKey,
    Publication,
    is_far_ahead,
    is_publication_id,
    next_publication_id,
    sign_publication,
)
from waybill.pulsar import cluster_clock
from waybill.pulsar.pulsar_client import (
    PulsarAccess,
    PulsarAccessError,
    TokenNotGood,
    close_quietly,
    open_pulsar_client,
)
from waybill.record import InvalidJson, parse_json
from waybill.settings import as_read, file_fault, printable

# Files of fences, contracts and alert rules.

FENCES_FILE: Final = "fences.geojson"
"""The file of fences in a folder of reference data, next to contracts in `*.toml`."""
MAX_FILES: Final = 10_000
MAX_FILE_BYTES: Final = 256 << 20
_TOML_TABLE: Final = re.compile(r"\A(?:[ \t]*(?:#[^\n]*)?\r?\n)*+[ \t]*\[\[?[ \t]*[A-Za-z_][A-Za-z_.]*[ \t]*\]")
"""A text that begins with the head of a TOML table, after comments."""
_PlaceOf = Callable[..., str]
"""Returns the place of a version in its file, or of a part of it, by the keys that lead there."""


@dataclass(frozen=True, slots=True)
class ReferenceVersion:
    """One version of one thing; `body` is its JSON text."""

    kind: Kind
    id: str
    effective_from: str
    body: str

    @property
    def key(self) -> str:
        return f"{self.id}@{self.effective_from}"


class PlacedVersion(NamedTuple):
    """A version, its place in a file, and a function for the place of a part of it.

    `notices`: ignored names that look like a misspelled one.
    """

    place: str
    version: ReferenceVersion
    place_of: Callable[..., str]
    notices: tuple[str, ...] = ()


def read_reference(paths: Iterable[Path]) -> list[ReferenceVersion]:
    """The versions in files, without their places. Raises ReferenceFileError."""
    return [one.version for one in read_placed(paths)]


def read_placed(paths: Iterable[Path]) -> list[PlacedVersion]:
    """The versions in files and folders, each once, with their places.

    TOML holds contracts; any other file is GeoJSON with fences and gates. Raises ReferenceFileError with all faults and
    their places. `contracts.check` compares versions with each other.
    """
    placed: dict[tuple[Kind, str, str], PlacedVersion] = {}
    faults: list[str] = []
    readings: dict[tuple[Kind, str], tuple[str, str]] = {}
    for path in paths:
        files = _files_of(path) if path.is_dir() else [path]
        if not files:
            faults.append(f"{printable(str(path))}: the folder has no {FENCES_FILE}, and no contracts in *.toml")
        for file in files:
            # A name may have any characters, and is shown to people.
            name = printable(str(file))
            for place_of, made, notices in _versions_in(file):
                place = place_of()
                if isinstance(made, str):
                    faults.append(f"{name}{place}: {made}")
                    continue
                one = PlacedVersion(f"{name}{place}", made, partial(_within, name, place_of), notices)
                first = placed.setdefault(_identity(made), one)
                alike, at = readings.setdefault((made.kind, as_read(made.id)), (made.id, one.place))
                if alike != made.id:
                    faults.append(f"{name}{place}: {made.kind} {made.id!a} reads like {alike!a} ({at})")
                if first.version != made:
                    since = f" from {made.effective_from}" if made.effective_from else ""
                    twice = f"{made.kind} {made.id!r}{since} is given twice, with two contents ({first.place})"
                    faults.append(f"{name}{place}: {twice}")
    if faults:
        raise ReferenceFileError(faults)
    return [*placed.values()]


def _files_of(folder: Path) -> list[Path]:
    fences = folder / FENCES_FILE
    named = [fences] if fences.exists() else []
    return [*named, *islice(sorted(folder.glob("*.toml")), MAX_FILES)]


def _identity(version: ReferenceVersion) -> tuple[Kind, str, str]:
    begin = beginning(version.kind, version.body)
    return version.kind, version.id, version.effective_from if begin == UNKNOWN_BEGINNING else begin


def _within(file: str, place_of: _PlaceOf, *inner: str | int) -> str:
    return f"{file}{place_of(*inner)}"


class _Read(NamedTuple):
    place_of: _PlaceOf
    made: ReferenceVersion | str
    notices: tuple[str, ...] = ()


def _versions_in(file: Path) -> Iterator[_Read]:
    try:
        text = _text_of(file)
        if file.suffix == ".toml":
            yield from _contracts_in(text)
            return
        if _TOML_TABLE.search(text):
            yield _Read(
                _place_is(""), "is not GeoJSON, and looks like TOML: name it .toml to have it read as contracts"
            )
            return
    except (OSError, ValueError) as error:
        yield _Read(_place_is(""), f"cannot be read: {file_fault(error)}")
        return
    yield from map(_fence, read_features(text))


def _text_of(file: Path) -> str:
    return read_bounded(file, MAX_FILE_BYTES).decode("utf-8-sig")


def _place_is(place: str) -> _PlaceOf:
    return lambda *_: place


def _contracts_in(text: str) -> Iterator[_Read]:
    found, faults = contracts_of_toml(text)
    for fault in faults:
        yield _Read(_place_is(fault.place), fault.reason)
    for one in found:
        yield _Read(partial(_line, one), _stated(one))


def _line(stated: StatedContract, *inner: str | int) -> str:
    return f":{stated.line_of(*inner)}"


def _stated(stated: StatedContract) -> ReferenceVersion | str:
    body = stated.made.model_dump(mode="json", exclude_defaults=True)
    try:
        return make_version(cast("Kind", stated.kind), body)
    except ValueError as error:
        return str(error)


def counts_text(counts: Mapping[Kind, int]) -> str:
    """The number of versions of each kind, as `2 accounts, 1 legal entity`."""
    words = {kind: kind.replace("_", " ") for kind in counts}
    several = {kind: f"{one.removesuffix('y')}ies" if one.endswith("y") else f"{one}s" for kind, one in words.items()}
    return ", ".join(f"{counts[kind]} {(words if counts[kind] == 1 else several)[kind]}" for kind in sorted(counts))


def _fence(feature: Feature) -> _Read:
    place = _place_is(f": {feature.place}")
    try:
        made = fence_of(feature)
        version = make_version("fence", feature.value)
    except FenceError as error:
        return _Read(place, str(FenceError(error.reason, fence_id=error.fence_id)))
    except ValueError as error:
        return _Read(place, str(error))
    notices = tuple(f"{kind_of(made)} {made.id!r}: {one}" for one in feature_notices(feature.value))
    return _Read(place, fault_of("fence", version.body) or version, notices)


def make_version(kind: Kind, body: dict[str, Any]) -> ReferenceVersion:
    """A version to publish. Raises ValueError for one that the centre would refuse."""
    name, begin = stated_version(kind, body)
    if not name:
        raise ValueError(f"a {kind} has no id")
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        parse_json(text.encode(), max_bytes=MAX_BYTES, max_values=MAX_VALUES)
    except (InvalidJson, ValueError) as error:
        raise ValueError(f"the {kind} {name!r} cannot be published: {error}") from error
    return ReferenceVersion(kind, name, begin, text)


def fault_of(kind: Kind, body: str) -> str:
    """Why a version cannot be used, or ""."""
    try:
        usable(kind, body)
    except (CloudError, AlertError, FenceError) as error:
        return str(error)
    return ""


def usable(kind: str, body: str) -> Usable[object]:
    """Parses a version for its user, with its beginning. Raises CloudError, AlertError, FenceError."""
    match kind:
        case "fence":
            return usable_fence(body)
        case "alert_rule":
            return usable_rule(body)
        case _:
            return usable_contract(kind, body)


_TIMEOUT_S = 10
_RIGHT_NEEDED = (
    "take the token of a role that may: one with the grant `produce` there in the topology, as `publisher` has in the "
    "local stack (access/tokens/publisher.token); `token_file` under [access] names it"
)
_NEW_TOKEN = {"way_out": "write a new token of a role that may publish (waybill pki token ROLE)"}
_ANYBODY = PulsarAccess()
_Publication = tuple[ReferenceVersion, str]


class Signing(NamedTuple):
    key: OperatorKey
    reason: str


def check_clock(admin_urls: Sequence[str], access: PulsarAccess) -> None:
    """Compares this machine's clock with the first cluster that answers. Raises ReferenceNotPublished.

    Ids of publications contain the time, so a clock that is ahead would put later corrections behind.
    """
    reasons, way_out = list[str](), dict[str, str]()
    _check_token(access)
    for url in admin_urls:
        try:
            return cluster_clock.check_clock(url, access)
        except cluster_clock.ClockUnknown as unknown:
            reasons.append(str(unknown))
            if isinstance(unknown, cluster_clock.NotLetIn):
                way_out = _NEW_TOKEN
        except cluster_clock.ClockDiffers as differs:
            raise ReferenceNotPublished([str(differs)]) from differs
    raise ReferenceNotPublished(reasons, **way_out)


def _check_token(access: PulsarAccess) -> None:
    """Raises ReferenceNotPublished for a token that no cluster would accept."""
    try:
        access.check_token(time.time())
    except TokenNotGood as error:
        raise ReferenceNotPublished([str(error)], **_NEW_TOKEN) from error


def publish(
    service_urls: Sequence[str],
    versions: Iterable[ReferenceVersion],
    access: PulsarAccess = _ANYBODY,
    *,
    signing: Signing | None = None,
    clock: Callable[[], float] = time.time,
) -> int:
    """Publishes versions to the topics of the first cluster that accepts them, and returns their number.

    All are persisted when this returns. `signing`: the key and the reason; without it they are unsigned. The ids follow
    the last publication in the cluster, whatever `clock` (seconds since 1970) says, except ids more than five minutes
    ahead. A second cluster gets the same ids, so a version that arrived in both counts once. Raises
    ReferenceNotPublished.
    """
    _check_token(access)
    todo, reasons, now_ms = list(versions), list[str](), round(clock() * 1000)
    publications: list[_Publication] = []
    way_out: dict[str, str] = {}
    for url in service_urls:
        try:
            client = open_pulsar_client(url, access, timeout_s=_TIMEOUT_S)
            try:
                publications = publications or _with_ids(todo, _newest_id(client, now_ms), now_ms)
                return _send(client, publications, signing)
            finally:
                close_within([partial(close_quietly, client)])
        except pulsar.AuthorizationError:
            way_out = {"way_out": _RIGHT_NEEDED}
            reasons.append(f"{url}: the role of this token may not publish on {NAMESPACE}")
        except (PulsarAccessError, pulsar.PulsarException, ValueError, RuntimeError) as error:
            reasons.append(f"{url}: {error}")
    raise ReferenceNotPublished(reasons, **way_out)


def _with_ids(versions: Iterable[ReferenceVersion], newest: str | None, now_ms: int) -> list[_Publication]:
    publications: list[_Publication] = []
    for version in versions:
        newest = next_publication_id(newest, now_ms, secrets.randbits(RANDOM_BITS))
        publications.append((version, newest))
    return publications


def _newest_id(client: pulsar.Client, now_ms: int) -> str | None:
    """The highest id of a publication that is not far ahead of the clock."""
    newest = _last_id(client)
    if newest is None or not is_far_ahead(newest, now_ms):
        return newest
    ids = (one for topic in TOPICS.values() for one in _ids(client, topic, pulsar.MessageId.earliest) if one)
    return max((one for one in ids if not is_far_ahead(one, now_ms)), default=None)


def _last_id(client: pulsar.Client) -> str | None:
    """The highest of the last ids of all topics; a topic that ends with a message without id is read whole."""
    found = list[str]()
    for topic in TOPICS.values():
        last = list(_ids(client, topic, pulsar.MessageId.latest))
        found += filter(None, _ids(client, topic, pulsar.MessageId.earliest) if None in last else last)
    return max(found, default=None)


def _ids(client: pulsar.Client, topic: str, start: pulsar.MessageId) -> Iterator[str | None]:
    reader = client.create_reader(
        f"{NAMESPACE}/{topic}",
        start,
        # of what was compacted the topic itself may hold nothing any more
        is_read_compacted=True,
        start_message_id_inclusive=True,
    )
    try:
        while reader.has_message_available():
            yield _id_of(reader.read_next(_TIMEOUT_S * 1000))
    finally:
        reader.close()


def _id_of(message: pulsar.Message) -> str | None:
    try:
        text = message.properties().get(ID_PROPERTY)
    except UnicodeDecodeError:
        return None
    if text is None or not is_publication_id(text) or is_far_ahead(text, message.publish_timestamp()):
        return None
    return str(text)


def _send(client: pulsar.Client, publications: Iterable[_Publication], signing: Signing | None) -> int:
    producers = {kind: client.create_producer(f"{NAMESPACE}/{topic}") for kind, topic in TOPICS.items()}
    count = 0
    for version, publication_id in publications:
        body, properties = version.body.encode(), {ID_PROPERTY: publication_id}
        # with its id, which is drawn only when it is known after which others it comes
        if signing is not None:
            published = Publication(version.kind, version.key, body)
            properties = sign_publication(signing.key, published, publication_id, signing.reason)
        producers[version.kind].send(body, properties=properties, partition_key=version.key)
        count += 1
    return count
