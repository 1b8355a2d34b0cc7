"""Files of settings and of topologies, as each command reads them: the first byte chooses whose file it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edge_agent.config import AgentSettings
from gateway import GatewaySettings
from geo.replication import Topology
from tests.fuzz.bounds import check_refusal
from waybill.settings import SettingsError, parse
from waybill.settings.loading import MAX_PROBLEM_CHARACTERS, MAX_PROBLEMS

MAX_SECONDS = 0.15
FUZZED_BYTES = 4096
MODELS: tuple[Any, ...] = (AgentSettings, GatewaySettings, Topology)


def seeds() -> Iterable[bytes]:
    """One of each, and texts that are deep, long, repeated, or of wrong types."""
    for text in texts():
        yield from (bytes([model]) + text for model in range(len(MODELS)))


def texts() -> Iterable[bytes]:
    yield b'[device]\nid = "eu-1"\n[[uplinks]]\nregion = "eu"\nhost = "h"\n[uplinks.tls]\nca = "/ca.pem"\n'
    yield b'name = "g"\nregion = "eu"\n[mqtt]\nhost = "h"\n[pulsar]\nservice_url = "pulsar://h:6650"\n'
    yield b'[clusters.eu]\nadmin_url = "http://h:1"\nservice_url = "pulsar://h:2"\n[[tenants]]\nname = "fleet"\n'
    yield b"[uplinks]\nregion = 5\n[status]\nport = -1\nprot = nan\n"
    yield b"".join(b"[[uplinks]]\nx%d = %d\n" % (number, number) for number in range(2000))
    yield b"[" * 60_000
    yield b"a." * 15 + b"a = 1\n"
    yield b"[a.b.c]\n" + b"".join(b"k%d.x.y = {z = [1, [2, [3]]]}\n" % number for number in range(1000))
    yield b'a = """' + b'\\\n ""' * 10_000
    yield b"a = 0x" + b"f" * 60_000 + b"\nb = 1e" + b"9" * 4000
    yield b"a = [" + b"1979-05-27T07:32:00.999999-07:00, " * 1500 + b"]"


def judge(data: bytes) -> None:
    """Settings, or all that is wrong with them, in bounded words."""
    try:
        text = data[1:].decode()
    except UnicodeDecodeError:
        return  # refused by `load`, which reads the file
    try:
        parse(MODELS[data[0] % len(MODELS) if data else 0], text, "file")
    except SettingsError as error:
        check_refusal(error, (MAX_PROBLEMS + 1) * (MAX_PROBLEM_CHARACTERS + 10))
