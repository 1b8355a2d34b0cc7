"""`edge-agent setup`: asks what a person knows, checks each answer by trying it, and writes the settings.

An answer comes from an option, or else from the terminal. A wrong one is asked again; with `--yes` it ends the command.
"""

from __future__ import annotations

import json
import shutil
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import ValidationError

from edge_agent.checking import SERVICE_USER
from edge_agent.config import AgentSettings, DeviceSettings
from edge_agent.errors import AgentError, LinkError
from edge_agent.uplink.mqtt_session import MqttSession
from waybill.daemon.durable_file import create_durably, replace_durably
from waybill.daemon.tls import TlsSettings, tls_context
from waybill.identity.authority import common_name, read_certificates
from waybill.identity.claims import token_user
from waybill.identity.errors import IdentityError
from waybill.mqtt.broker_settings import BrokerSettings, is_this_machine, read_password
from waybill.mqtt.mqtt_client import MqttSessionOptions
from waybill.settings import SettingsError, file_fault, nearest, parse, printable

NATIVE: Final = "native"
MODE: Final = 0o640
SERVICE_FILE: Final = Path("/etc/waybill/agent.toml")
_FILES: Final = frozenset({"ca", "token_file", "certificate", "key"})
_CONNECT_S: Final = 10.0
_ATTEMPTS: Final = 5

Answers = dict[str, str]
Ask = Callable[[str, str], str]
"""Asks on the terminal: the question and the default ("": none)."""
Say = Callable[[str], None]


class WrongAnswer(AgentError):
    """An answer that does not work; the message says why and what to do."""


# Questions, in their order.


class Question(NamedTuple):
    """`name`: of the answer, and of its option. `check`: raises WrongAnswer, and returns what to tell.

    `applies`: whether it is asked after the answers so far.
    """

    name: str
    text: str
    default: str
    check: Callable[[str, Answers], str]
    applies: Callable[[Answers], bool] = lambda _: True

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def _check_name(field: str) -> Callable[[str, Answers], str]:
    def check(answer: str, _: Answers) -> str:
        try:
            names = {"id": "any", "tenant": "any"} | {field: answer}
            DeviceSettings(**names)
        except (ValidationError, IdentityError) as error:
            raise WrongAnswer(
                f"{printable(answer)!r} is not a name: letters, digits, dots, underscores and hyphens, at most 63"
            ) from error
        return ""

    return check


def _check_ca(answer: str, _: Answers) -> str:
    try:
        tls_context(TlsSettings(ca=Path(answer)))
    except (OSError, ValueError) as error:
        raise WrongAnswer(f"{answer} cannot be used: {_fault(error)}; the operator has it as root.pem") from error
    return ""


def _check_broker(what: str) -> Callable[[str, Answers], str]:
    return lambda answer, answers: _reached(answers["region_host"], _port(answer), Path(answers["ca"]), what)


_check_region, _check_enrolment = _check_broker("the region's broker"), _check_broker("the enrolment broker")


def _check_host(answer: str, _: Answers) -> str:
    try:
        found = socket.getaddrinfo(answer, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise WrongAnswer(f"{printable(answer)} has no address: {_fault(error)}; check the name and the DNS") from error
    return f"{answer} is {found[0][4][0]}"


def _reached(host: str, port: int, ca: Path, what: str) -> str:
    """Connects with TLS, as the agent will. A broker asks for the device's certificate later."""
    try:
        plain = socket.create_connection((host, port), timeout=_CONNECT_S)
    except OSError as error:
        raise WrongAnswer(f"{host}:{port} does not answer: {_fault(error)}; check host, port and firewall") from error
    try:
        with plain, tls_context(TlsSettings(ca=ca)).wrap_socket(plain, server_hostname=host) as session:
            return f"{what} answers at {host}:{port} with {session.version()}"
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message
        raise WrongAnswer(f"{what} at {host}:{port} is not trusted: {reason}; check the host and {ca}") from error
    except OSError as error:
        raise WrongAnswer(f"{host}:{port} does not speak TLS: {_fault(error)}; check the port") from error


def _check_claim(answer: str, _: Answers) -> str:
    known = ("token", "certificate")
    if answer not in known:
        near = nearest(answer, known)
        raise WrongAnswer(f"write token or certificate{f'; did you mean {near}?' if near else ''}")
    return ""


def _check_token(answer: str, _: Answers) -> str:
    try:
        return f"the token is {token_user(read_password(Path(answer)))}"
    except (OSError, ValueError, IdentityError) as error:
        raise WrongAnswer(f"{answer} cannot be used: {_fault(error)}") from error


def _check_certificate(answer: str, answers: Answers) -> str:
    wanted = f"{answers['tenant']}/{answers['device']}"
    try:
        name = common_name(read_certificates(Path(answer).read_bytes())[0].subject)
    except (OSError, ValueError, IdentityError) as error:
        raise WrongAnswer(f"{answer} cannot be used: {_fault(error)}") from error
    if name != wanted:
        raise WrongAnswer(f"{answer} is for {printable(name)}, but this device is {wanted}")
    return f"the certificate is for {wanted}"


def _check_key(answer: str, answers: Answers) -> str:
    files = TlsSettings(ca=Path(answers["ca"]), certificate=Path(answers["certificate"]), key=Path(answer))
    try:
        tls_context(files)
    except (OSError, ValueError) as error:
        raise WrongAnswer(f"{answer} does not fit {answers['certificate']}: {_fault(error)}") from error
    return ""


def _check_vehicle(answer: str, answers: Answers) -> str:
    broker = BrokerSettings(host=answers["vehicle_host"], port=_port(answer), connect_timeout_s=_CONNECT_S)
    session = MqttSession(broker, MqttSessionOptions(client_id="edge-agent-setup"), lambda _: None)
    try:
        session.open()
    except LinkError as error:
        # on this machine it may be set up afterwards, from these settings
        if is_this_machine(broker.host) and isinstance(error.__cause__, ConnectionRefusedError):
            return f"no broker listens at {broker.host}:{broker.port} yet: `edge-agent broker-conf` configures one"
        raise WrongAnswer(
            f"{broker.host}:{broker.port} is not the vehicle's MQTT broker: {error}; check host and port"
        ) from error
    finally:
        session.close()
    return f"the vehicle's broker answers at {broker.host}:{broker.port}"


def _port(answer: str) -> int:
    if not answer.isdecimal() or not 0 < int(answer) < 65_536:
        raise WrongAnswer(f"{printable(answer)!r} is not a port: 1 to 65535")
    return int(answer)


def _fault(error: Exception) -> str:
    return file_fault(error) if isinstance(error, OSError | ValueError) else str(error)


def _has(claim: str) -> Callable[[Answers], bool]:
    return lambda answers: answers["claim"] == claim


QUESTIONS: Final = (
    Question("tenant", "Tenant, the owner of the device", "", _check_name("tenant")),
    Question("device", "Name of the device", "", _check_name("id")),
    Question("region", "Name of the region", "", _check_name("id")),
    Question("ca", "File of the root certificate (PEM)", "/etc/waybill/root.pem", _check_ca),
    Question("region_host", "Host of the region's broker", "", _check_host),
    Question("region_port", "Its port", "8883", _check_region),
    Question("claim", "What the operator gave you: token or certificate", "token", _check_claim),
    Question("token_file", "File of the token", "/etc/waybill/token", _check_token, _has("token")),
    Question("enrolment_port", "Port of the enrolment broker", "8884", _check_enrolment, _has("token")),
    Question("certificate", "File of the device's certificate (PEM)", "", _check_certificate, _has("certificate")),
    Question("key", "File of its private key (PEM)", "", _check_key, _has("certificate")),
    Question("vehicle_host", "Host of the vehicle's own broker", "127.0.0.1", _check_host),
    Question("vehicle_port", "Its port", "1883", _check_vehicle),
    Question(
        "sensors",
        "What the sensors send: native (the JSON of docs/sensors.md), or a preset (docs/connect.md)",
        NATIVE,
        lambda answer, _: _check_sensors(answer),
    ),
)


def _check_sensors(answer: str) -> str:
    """A preset has to load; the text of an agent that has no other fault says whether it does."""
    try:
        parse(AgentSettings, settings_text({**_EXAMPLE, "sensors": answer}), "--sensors")
    except SettingsError as error:
        raise WrongAnswer(f"{printable(answer)!r} is not a preset: {'; '.join(error.lines)}") from error
    return ""


_EXAMPLE: Final[Answers] = {
    "tenant": "t",
    "device": "d",
    "region": "eu",
    "ca": "root.pem",
    "region_host": "localhost",
    "region_port": "8883",
    "claim": "token",
    "token_file": "token",
    "enrolment_port": "8884",
    "vehicle_host": "127.0.0.1",
    "vehicle_port": "1883",
    "sensors": NATIVE,
}


# Asking.


@dataclass(frozen=True, slots=True)
class Interview:
    """`given`: answers from options. `ask` None: nothing is asked, and defaults count."""

    given: Mapping[str, str]
    ask: Ask | None
    say: Say

    def answers(self) -> Answers:
        """Every answer, checked. Raises AgentError."""
        found: Answers = {}
        for question in QUESTIONS:
            if question.applies(found):
                found[question.name] = self._answer(question, found)
        return found

    def _answer(self, question: Question, before: Answers) -> str:
        given = self.given.get(question.name, "")
        for _ in range(_ATTEMPTS):
            answer = given or self._asked(question)
            try:
                if told := question.check(answer, before):
                    self.say(f"  ✓ {printable(told)}")
                return answer
            except WrongAnswer as error:
                if self.ask is None:
                    raise AgentError(f"{question.option}: {error}") from error
                self.say(f"  ✗ {error}")
                given = ""
        raise AgentError(f"{question.option}: no usable answer in {_ATTEMPTS} attempts")

    def _asked(self, question: Question) -> str:
        if self.ask is not None:
            return self.ask(question.text, question.default).strip()
        if not question.default:
            raise AgentError(f"{question.option} is missing: {question.text.lower()}")
        return question.default


# The settings file.


def settings_text(answers: Answers) -> str:
    """The commented `agent.toml` of these answers."""
    # the service of the package runs in another folder than this command
    files = {name: str(Path(answer).absolute()) for name, answer in answers.items() if name in _FILES}
    value = {name: json.dumps(answer, ensure_ascii=False) for name, answer in {**answers, **files}.items()}
    return f"""# The agent of {answers["tenant"]}/{answers["device"]}, made by `edge-agent setup`.
# docs/edge-agent.md lists all settings.
#   edge-agent check-config --config this
#   edge-agent run --config this

[device]
tenant = {value["tenant"]}
id = {value["device"]}

# The vehicle's own broker, at which the sensors publish.
[intake]
host = {value["vehicle_host"]}
port = {int(answers["vehicle_port"])}
{_mapping_text(answers)}
# Records wait here until the region acknowledges them.
[buffer]
path = "/var/lib/edge-agent"

# A second region of the same form takes over when this one does not answer.
[[uplinks]]
region = {value["region"]}
host = {value["region_host"]}
port = {int(answers["region_port"])}

{_identity_text(answers, value)}"""


def _mapping_text(answers: Answers) -> str:
    if answers["sensors"] == NATIVE:
        return """
# Sensors with another format need [[mappings]]: `edge-agent map suggest --config this` proposes them.
"""
    return f"""
# What the sensors send is translated; `edge-agent map try` shows the result.
[[mappings]]
name = "sensors"
preset = {json.dumps(answers["sensors"])}
"""


def _identity_text(answers: Answers, value: Mapping[str, str]) -> str:
    if answers["claim"] == "certificate":
        return f"""[uplinks.tls]
ca = {value["ca"]}
certificate = {value["certificate"]}
key = {value["key"]}
"""
    return f"""[uplinks.tls]
ca = {value["ca"]}

# The agent shows the token once, gets a certificate for it, and renews that by itself.
[enrolment]
host = {value["region_host"]}
port = {int(answers["enrolment_port"])}
ca = {value["ca"]}
token_file = {value["token_file"]}
"""


def write_settings(file: Path, text: str, *, replace: bool) -> None:
    """Writes the settings, readable by their owner and group. Raises AgentError, SettingsError, OSError."""
    # what was checked answer by answer must load as a whole
    parse(AgentSettings, text, str(file))
    if replace:
        replace_durably(file, text.encode(), mode=MODE)
    elif not create_durably(file, text.encode(), mode=MODE):
        raise AgentError(f"{file} exists and stays as it is; --force replaces it, --out names another file")
    with suppress(LookupError, OSError):  # the group is that of the Debian package's service
        shutil.chown(file, group=SERVICE_USER)


def next_commands(file: Path, answers: Answers) -> Sequence[str]:
    """What to run after the file was written."""
    conf = "edge-agent broker-conf" if is_this_machine(answers["vehicle_host"]) else "edge-agent check-config"
    if file.absolute() != SERVICE_FILE:
        return (f"{conf} --config {file}", f"edge-agent run --config {file}")
    secrets = [answers[name] for name in ("token_file", "key") if name in answers]
    allowed = [f"chgrp {SERVICE_USER} {one} && chmod 640 {one}" for one in secrets]
    return (f"{conf} --config {file}", *allowed, f"systemctl start {SERVICE_USER}")
