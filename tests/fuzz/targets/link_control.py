"""Lines of the control of the stack's links: a command, and the answer to one."""

from __future__ import annotations

from collections.abc import Iterable

from deploy.local import LinkControlError
from deploy.local.links import MAX_LINE_BYTES, LinkCommand, LinkConfig, ProxyLink, answer_command, answered_state
from tests.fuzz.bounds import check_refusal


def seeds() -> Iterable[bytes]:
    """A command of each kind, answers, and lines that are neither."""
    for action in ("cut", "heal", "delay", "state"):
        yield f'{{"link": "eu", "secret": "s", "action": "{action}", "delay_s": 0.5, "silent": true}}\n'.encode()
    yield LinkCommand(link="no such link", secret="s", action="cut").model_dump_json().encode()
    link = ProxyLink("eu", LinkConfig(listen=1, target=2))
    yield answer_command({"eu": link}, b'{"link": "eu", "secret": "s", "action": "state"}', "s")
    yield answer_command({}, b"", "s")
    yield b'{"state": ' + b"[" * 4000
    yield b'{"state": [], "error": 5}'
    yield b""


def judge(data: bytes) -> None:
    """Every line is answered with one line that fits; and every answer is a state, or LinkControlError."""
    link = ProxyLink("eu", LinkConfig(listen=1, target=2))
    line = answer_command({"eu": link}, data, "s")
    assert line.count(b"\n") == 1
    assert len(line) <= MAX_LINE_BYTES
    for answer in (line, data[:MAX_LINE_BYTES]):
        try:
            answered_state("eu", answer)
        except LinkControlError as error:
            check_refusal(error)
