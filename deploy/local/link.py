"""Links that can be cut, healed and slowed, by whoever knows the port of their control."""

import socket

from pydantic import BaseModel, ValidationError

from deploy.local.errors import LinkControlError
from deploy.local.proxy import MAX_LINE_BYTES, LinkCommand, ProxyLinkState
from waybill.settings import one_line

__all__ = ["CuttableLink", "answered_state"]

_HOST = "127.0.0.1"
_CONTROL_S = 5.0


class CuttableLink:
    """One TCP link: connect to `port` and you reach `target`, while the link holds.

    It needs only the control port and its secret, so another process of the stack's owner may use it.
    """

    def __init__(self, name: str, port: int, target: int, control: int, secret: str) -> None:
        self.name, self.port, self.target, self.control, self.secret = name, port, target, control, secret

    def cut(self, *, silent: bool = False) -> ProxyLinkState:
        """Reset all connections and refuse new ones; `silent`: keep them and move no byte."""
        return self._send(LinkCommand(link=self.name, secret=self.secret, action="cut", silent=silent))

    def heal(self) -> ProxyLinkState:
        """Let traffic through again."""
        return self._send(LinkCommand(link=self.name, secret=self.secret, action="heal"))

    def delay(self, seconds: float) -> ProxyLinkState:
        """Hold every chunk for this long, each way (0 to 10 s)."""
        return self._send(LinkCommand(link=self.name, secret=self.secret, action="delay", delay_s=seconds))

    def state(self) -> ProxyLinkState:
        """Whether it is cut, its delay, its open connections and the bytes it carried."""
        return self._send(LinkCommand(link=self.name, secret=self.secret, action="state"))

    def _send(self, command: LinkCommand) -> ProxyLinkState:
        try:
            with socket.create_connection((_HOST, self.control), timeout=_CONTROL_S) as control:
                control.sendall(command.model_dump_json().encode() + b"\n")
                with control.makefile("rb") as answers:
                    # Whoever has the port now may be another process than the links'.
                    answer = answers.readline(MAX_LINE_BYTES)
        except OSError as broken:
            raise LinkControlError(
                self.name, f"its control on port {self.control} did not answer: {broken}"
            ) from broken
        return answered_state(self.name, answer)


class _ControlAnswer(BaseModel):
    """The line that answers a command."""

    state: ProxyLinkState | None = None
    error: str = "empty answer"


def answered_state(link: str, line: bytes) -> ProxyLinkState:
    """The state of a link that a line says. Raises LinkControlError."""
    try:
        answer = _ControlAnswer.model_validate_json(line or b"{}")
    except ValidationError as broken:
        raise LinkControlError(link, f"its control answered with no state ({broken.error_count()} faults)") from broken
    if answer.state is None:
        raise LinkControlError(link, one_line(answer.error))
    return answer.state
