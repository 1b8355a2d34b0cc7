"""Parsers made from the text of mappings."""

from typing import Any

from edge_agent.config import AgentSettings
from edge_agent.intake.messages import MessageParser
from edge_agent.mapping.examples import described
from edge_agent.mapping.parser import compile_mappings
from waybill.settings import parse

AGENT = """
[device]
id = "d"
[[uplinks]]
region = "eu"
host = "localhost"
"""


def settings_of(mappings: str) -> AgentSettings:
    return parse(AgentSettings, AGENT + mappings, "agent.toml")


def parser_of(mappings: str) -> MessageParser:
    return compile_mappings(settings_of(mappings).mappings)


def gives(parser: MessageParser, topic: str, payload: str | bytes, at_us: int = 0) -> list[dict[str, Any]]:
    """The records of a message as plain values."""
    data = payload.encode() if isinstance(payload, str) else payload
    return [described(one) for one in parser.accept(parser.parse(topic, data), topic, at_us)]
