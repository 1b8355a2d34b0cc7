"""Files: settings, contracts, fences, fixes, and the small ones that a process keeps for the next one."""

import contextlib
import io
import json
import random
import tempfile
import tomllib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from cloud_jobs.billing.contracts import contracts_of_toml
from cloud_jobs.billing.contracts.toml_text import MAX_TEXT_FAULTS
from cloud_jobs.measure import read_fixes
from cloud_jobs.pulsar_source.cluster_monitor import FailoverFile, FailoverState, QueryIdentity
from cloud_jobs.pulsar_source.options import FailoverFileError
from cloud_jobs.reference.files import _contracts_in
from deploy.local.errors import FolderNotOurs, LocalStackError
from deploy.local.folder import claim, hold
from deploy.local.ports import PortBook
from deploy.local.stack_state import StackState
from edge_agent.config import AgentSettings
from edge_agent.push.pushed import PushRefused, merge_pushed
from edge_agent.store.epochs import LINEAGE, Lineage, read_lineage, write_lineage
from gateway.config import GatewaySettings
from geo.replication import Topology
from geo.spatial import FenceReport, FixError, fences_from_geojson
from geo.spatial.geojson import MAX_REFUSED, read_features
from tests.cloud_jobs.billing.contracts.test_toml_text import EXAMPLE
from tests.fuzz.bounds import Target, by_first_byte, refused_as
from tests.geo.spatial.json_values import UNEXPECTED, drawn, put
from waybill.settings import SettingsError, parse
from waybill.settings.loading import MAX_PROBLEM_CHARACTERS, MAX_PROBLEMS

FOLDER = Path(tempfile.mkdtemp(prefix="waybill-fuzz-"))


def judge_contracts(data: bytes) -> None:
    """Contracts and faults, each with a line of the text; and what is right can be published, or it is said why not."""
    text = data.decode("utf-8-sig", "replace")
    found, faults = contracts_of_toml(text)
    lines = text.count("\n") + text.count("\r") + 1
    assert len(faults) <= MAX_TEXT_FAULTS
    assert all(0 <= fault.line <= lines for fault in faults)
    assert all(0 <= one.line_of() <= lines for one in found)
    for read in _contracts_in(text):
        read.place_of()


RING = [[10, 50], [10.01, 50], [10.01, 50.01], [10, 50.01], [10, 50]]


def feature(kind: str, coordinates: Any, **properties: Any) -> dict[str, Any]:
    return {"type": "Feature", "properties": properties, "geometry": {"type": kind, "coordinates": coordinates}}


WEEK = {"timezone": "Europe/Berlin", "windows": [{"days": ["mon"], "from": "07:00", "until": "19:00"}]}
FEATURES = [
    feature("Polygon", [RING], id="a", priority=3, weekly=WEEK, speed_limit_mps=22.0, effective_until="2027-01-01T00Z"),
    feature("MultiPolygon", [[RING], [[[179, 1], [-179, 1], [-179, 2], [179, 2], [179, 1]]]], id="b"),
    feature("Polygon", [[[0, 80], [120, 80], [-120, 80], [0, 80]]], id="pole", effective_from="2026-01-05T00:00Z"),
    feature("Point", [10, 50], id="circle", radius_m=100),
    feature("LineString", [[10, 50], [10.001, 50]], id="corridor", width_m=20),
    feature("LineString", [[10, 50], [-179, 50], [0, 85]], id="far", width_m=100_000),
    feature("LineString", [[179.9, 50], [-179.9, 50]], id="gate", gate=True),
    feature("Polygon", [[[0, 0], [1, 1], [1, 0], [0, 1], [0, 0]]], id="bow"),
]
"""One of each shape and property, at the antimeridian and a pole."""
FURTHER, MAX_FURTHER_BYTES = 2, 8192
"""Places of each text that is a JSON value, drawn from the text, at which every unexpected value is judged, too."""
COLLECTION = json.dumps({"type": "FeatureCollection", "features": FEATURES}).encode()
POLYGON, CIRCLE, CORRIDOR = (json.dumps(FEATURES[at]).encode() for at in (0, 3, 4))


def judge_fences(data: bytes) -> None:
    """Nothing is raised; and each feature read is accounted for. So it is with other values at other places of it."""
    judge_text(data.decode("utf-8-sig", errors="surrogateescape"))
    value, draw = None, random.Random(zlib.crc32(data))
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(data) if len(data) <= MAX_FURTHER_BYTES else None
    for _ in range(FURTHER if value is not None else 0):
        place = drawn(value, draw)
        for unexpected in UNEXPECTED:
            judge_text(json.dumps(put(value, place, unexpected)))


def judge_text(text: str) -> FenceReport:
    """What a text holds; every feature of it is accounted for."""
    report = fences_from_geojson(text)
    read = sum(1 for _ in read_features(text))
    assert len(report.fences) + len(report.gates) + len(report.refused) == max(read, 1) or read > MAX_REFUSED
    assert all(fence.shape.is_valid and not fence.shape.is_empty for fence in report.fences)
    return report


FIXES = b"device_id,t_ms,lat,lon,speed_mps,accuracy_m\n"


def judge_fixes(data: bytes) -> None:
    """Refused with its typed error, or each row is a fix of a named device."""
    try:
        read = read_fixes(io.BytesIO(data))
    except (FixError, pa.ArrowException):
        return
    assert set(read.fixes.device.tolist()) == set(range(len(read.devices)))


AGENT_TEXT = (
    '[device]\nid = "eu-0001"\n[[uplinks]]\nregion = "eu"\nhost = "mqtt.eu.example"\n[uplinks.tls]\nca = "/ca.pem"\n'
)


AGENT = parse(AgentSettings, AGENT_TEXT, "agent.toml")


def judge_pushed(data: bytes) -> None:
    """Refused, or settings of the same device, with its certificates and quotas."""
    try:
        settings = merge_pushed(AGENT, tomllib.loads(AGENT_TEXT), data.decode("utf-8"))
    except (PushRefused, UnicodeDecodeError):
        return
    assert settings.device.id == "eu-0001"
    assert all(one.tls is not None and str(one.tls.ca) == "/ca.pem" for one in settings.uplinks)
    assert settings.buffer.max_bytes == 1 << 30


def judge_settings(model: Any) -> Callable[[bytes], None]:
    def judge(data: bytes) -> None:
        with refused_as(SettingsError, most=(MAX_PROBLEMS + 1) * (MAX_PROBLEM_CHARACTERS + 10)):
            parse(model, data.decode("utf-8", "replace"), "file")

    return judge


STATE = FOLDER / "state"
STATE.mkdir()
FAILOVER, PORTS, MARK = (STATE / name for name in ("failover.json", "ports.json", ".waybill-folder"))
STACK = FOLDER / "stack" / "stack.json"
claim(STACK.parent)


def read_stack() -> None:
    with hold(STACK.parent):
        StackState.load(STACK.parent)


def rewrite_lineage() -> None:
    if (lineage := read_lineage(STATE)) is not None:
        write_lineage(STATE, lineage)


READERS: tuple[tuple[Path, Callable[[], object], tuple[type[Exception], ...]], ...] = (
    (FAILOVER, lambda: FailoverFile(FAILOVER).load(), (FailoverFileError,)),
    (STATE / LINEAGE, rewrite_lineage, ()),
    (PORTS, lambda: PortBook(PORTS, timeout_s=0.0), (LocalStackError,)),
    (STACK, read_stack, (LocalStackError,)),
    (MARK, lambda: claim(STATE), (FolderNotOurs,)),
)


def state_files() -> tuple[bytes, ...]:
    FailoverFile(FAILOVER).save(QueryIdentity("q", "s", "t"), FailoverState("eu").with_created("eu", ["t-0"]))
    write_lineage(STATE, Lineage("t/d", 1, 2, 3, 4, 5))
    claim(FOLDER / "marked")
    stack = {"supervisor": 1, "phase": "ready", "servers": [], "links": {}}
    return (
        FAILOVER.read_bytes(),
        (STATE / LINEAGE).read_bytes(),
        b'{"mqtt": 20001, "pulsar": 20002}',
        json.dumps(stack).encode(),
        (FOLDER / "marked" / MARK.name).read_bytes(),
    )


def judge_state(data: bytes) -> None:
    """The file is read, or refused with the error of its reader; the first byte chooses which."""
    file, read, refusals = READERS[data[0] % len(READERS) if data else 0]
    for other, *_ in READERS:
        other.unlink(missing_ok=True)
    file.write_bytes(data[1:])
    with refused_as(*refusals):
        read()


ODD = (b"", b"[" * 9000, b'[Infinity, 1e999, "\\ud800"]', b'{"version": 2}', b"9" * 5000, b"\xff")
SETTINGS = (
    b'[device]\nid = "eu-1"\n[[uplinks]]\nregion = "eu"\nhost = "h"\n[uplinks.tls]\nca = "/ca.pem"\n',
    b'name = "g"\nregion = "eu"\n[mqtt]\nhost = "h"\n[pulsar]\nservice_url = "pulsar://h:6650"\n',
    b'[clusters.eu]\nadmin_url = "http://h:1"\nservice_url = "pulsar://h:2"\n[[tenants]]\nname = "fleet"\n',
    b"[uplinks]\nregion = 5\n[status]\nport = -1\nprot = nan\n",
    b"".join(b"[[uplinks]]\nx%d = %d\n" % (number, number) for number in range(2000)),
    b"[" * 60_000,
    b"a." * 15 + b"a = 1\n",
    b"[a.b.c]\n" + b"".join(b"k%d.x.y = {z = [1, [2, [3]]]}\n" % number for number in range(1000)),
    b'a = """' + b'\\\n ""' * 10_000,
    b"a = 0x" + b"f" * 60_000 + b"\nb = 1e" + b"9" * 4000,
    b"a = [" + b"1979-05-27T07:32:00.999999-07:00, " * 1500 + b"]",
)
TARGETS = {
    "contracts_toml": Target(
        (
            EXAMPLE.encode(),
            b"[[tariff]]\nid = 1\n" * 3000,
            b"[[tarif]]\n[account]\n[[legal_entity]]\n'a b'.\"c\".d = 1e99\n",
            b"[[tariff]]\nprices = [" + b"{amount = 1.5}, " * 3000 + b"]",
            b"[[account]]\ndevices = [{a = 1}, # ]\n {b = '''\n]''' }]\n",
            b"[[tariff]]\n" + b"".join(b"a%d.b.c = 0.1\n" % number for number in range(4000)),
        ),
        judge_contracts,
        lambda data: contracts_of_toml(data.decode("utf-8-sig", "replace")),
        max_seconds=0.15,
        fuzzed_bytes=4096,
    ),
    "fences_geojson": Target(
        (
            *(json.dumps(one).encode() for one in FEATURES),
            b"[%b, %b]" % (POLYGON, CIRCLE),
            b"var fences = [%b, %b, %b];" % (POLYGON, CIRCLE, CORRIDOR),
            COLLECTION,
            COLLECTION[: len(COLLECTION) // 2],
            b"\n".join(json.dumps(one).encode() for one in FEATURES),
            b'{"features":[null,' + POLYGON + b",NaN]}{}[]",
            b"[" * 20_000,
            b'{"features":[' + b"null," * 3000,
            b'{"type":"Feature","geometry":{"type":"Polygon","coordinates":[[[1e400,' + b"9" * 5000 + b"]]]}}",
        ),
        judge_fences,
        # what a shape takes is bounded by its corners
        lambda data: [*read_features(data.decode("utf-8-sig", errors="surrogateescape"))],
    ),
    "fixes_csv": Target(
        (
            FIXES + b"007,0,50.005,9.995,1.5,4\n007,60000,50.005,10.005,,\n",
            b'lat,lon,device_id,t_ms\n-90,180,"a, b",-5\n+.5e1,1.,x,9007199254740991\n',
            FIXES + b"d,1,1,1,nan,NaN\nd,2,91,1,,\nd,3,1e400,1,,\nd,99999999999999999999,1,1,,\n\xff,4,1,1,,\n",
            FIXES + b"d," + b"0" * 5000 + b",1,1,,\n" * 3,
            FIXES + b"d,1,1,1,,\n" * 3000 + b'"\n,,,,,\nd,1\n',
            b"device_id,t_ms,lat,lon,lat\n",
            b"\xef\xbb\xbf" + FIXES + b"x,0,0,0,0,0\r\nx,1,0,0,0,0\r\n",
        ),
        judge_fixes,
    ),
    "pushed_settings": Target(
        (
            b"[drain]\nwindow = 9\nack_timeout_s = 5.5\n",
            b'[[uplinks]]\nregion = "eu"\nhost = "new"\nport = 8883\n',
            b"[buffer]\nmax_bytes = 65536\n",
            b"[link]\nbytes_per_day = 2000000\n",
            b"log.level = 'debug'\n[time]\njump_s = 3\n[failover]\nafter_s = 30\n",
            b"a=" + b"[" * 5000,
            b"a = 0x" + b"f" * 5000,
            b'a=["""""""",' * 500,
        ),
        judge_pushed,
    ),
    "settings_toml": Target(
        tuple(bytes([model]) + text for text in SETTINGS for model in range(3)),
        by_first_byte(*map(judge_settings, (AgentSettings, GatewaySettings, Topology))),
        max_seconds=0.15,
        fuzzed_bytes=4096,
    ),
    "state_files": Target(
        (
            *(bytes([number]) + text for number, whole in enumerate(state_files()) for text in (whole, *ODD)),
            b"\x00" + json.dumps(json.loads(FAILOVER.read_bytes()) | {"abandoned": [5], "created": {"a": {}}}).encode(),
            b"\x01" + b"[2, {}, Infinity, 1e400, null, [], 1, 1]",
        ),
        judge_state,
    ),
}
