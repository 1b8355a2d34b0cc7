"""Who we are towards Pulsar: tokens that are replaced, files that cannot be used, and clients that are opened."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import pulsar
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr, TypeAdapter, ValidationError

from cloud_jobs.config import ClusterSettings
from cloud_jobs.pulsar_source.options import SourceCluster
from gateway.canary.config import WatchedCluster
from gateway.config import ClusterSource, Pulsar, RegistrySettings
from geo.replication.model import ClusterAddress
from tests.examples import examples
from tests.tokens import token_file, token_text
from waybill.identity.operator_settings import OperatorSettings
from waybill.pulsar.cluster_clock import ClockDiffers, ClockUnknown, NotLetIn, check_clock
from waybill.pulsar.pulsar_address import AdminUrl, ServiceUrl, each_host
from waybill.pulsar.pulsar_client import (
    PulsarAccess,
    PulsarAccessError,
    PulsarToken,
    TokenLife,
    TokenNotGood,
    close_quietly,
    open_pulsar_client,
    token_life,
)
from waybill.pulsar.pulsar_positions import ASK_S, EntryPosition, Silence


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe", b"two words", b"line\r\nX-Header: 1", None])
def test_a_token_file_that_is_being_replaced_leaves_the_token_before_it(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"first")
    token = PulsarToken(PulsarAccess(token_file=file))
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    assert token() == "first"
    with pytest.raises(PulsarAccessError, match="token file"):
        PulsarToken(PulsarAccess(token_file=file))
    file.write_bytes(b"second\n")
    assert token() == "second"


@pytest.mark.parametrize("token", [" ", "two words", "line\n"])
def test_what_is_not_a_valid_token_is_refused_before_anybody_sees_it(token: str) -> None:
    with pytest.raises(PulsarAccessError, match="not a valid token"):
        PulsarToken(PulsarAccess(token=SecretStr(token)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token": "a", "token_file": "b"}, "token or token_file, not both"),
        ({"tls_key": "k"}, "tls_certificate and tls_key belong together"),
        ({"tls_certificate": "k"}, "belong together"),
        ({"tokn": "a"}, "tokn"),
    ],
)
def test_fields_that_do_not_fit_are_named(fields: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PulsarAccess.model_validate(fields)


def test_a_client_is_opened_with_no_broker_there_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    client = open_pulsar_client("pulsar://127.0.0.1:1", PulsarAccess(), timeout_s=1, connect_timeout_s=0.2)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://public/default/x")
    client.close()
    assert capfd.readouterr() == ("", "")


def test_only_who_opens_a_client_needs_its_library() -> None:
    program = "import sys, waybill.pulsar.pulsar_client; sys.exit('pulsar' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


DAY_S = 86_400.0


def test_a_token_that_has_ended_is_named_with_its_role_its_file_and_its_end(tmp_path: Path) -> None:
    file = token_file(tmp_path, "jobs", ends_in_s=0)
    ended = PulsarAccess(token_file=file)
    moment = time.strftime("%Y-%m-%dT%H:%M", time.gmtime())
    with pytest.raises(TokenNotGood, match=rf"^token of jobs in {file} ended at {moment[:13]}.*get a new one$"):
        ended.check_token(time.time())
    token_file(tmp_path, "jobs", ends_in_s=7 * DAY_S)
    ended.check_token(time.time())


def test_a_token_that_is_not_good_yet_is_named_and_a_clock_a_minute_behind_is_not() -> None:
    access = PulsarAccess(token=SecretStr(token_text("jobs", nbf=1000, exp=9000)))
    assert "token of jobs is not valid before 1970-01-01T00:16:40Z" in access.token_problem(900)
    assert access.token_problem(941) == ""
    assert "ended at 1970-01-01T02:30:00Z" in access.token_problem(9000)


@pytest.mark.parametrize(
    ("life_s", "soon_s"), [(7 * DAY_S, 1.4 * DAY_S), (365 * DAY_S, 2 * DAY_S), (3600.0, 720.0)], ids=str
)
def test_a_token_ends_soon_in_the_last_fifth_of_its_life_and_at_most_two_days_before_its_end(
    life_s: float, soon_s: float
) -> None:
    life = TokenLife("x", 0, life_s)
    assert life.ends_soon(life_s - soon_s - 1) == ""
    assert life.ends_soon(life_s - soon_s + 1).startswith("ends at ")
    assert life.ends_soon(life_s) == "", "it has ended"
    assert TokenLife("x", ends_s=life_s).ends_soon(life_s - 1) == "", "nobody knows how long it was good for"


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda body: f"a.{body!r}.b"))
def test_whatever_is_given_as_a_token_has_a_life_or_none(text: str) -> None:
    life = token_life(text)
    assert life is None or isinstance(life.problem(0), str)


def test_what_the_cluster_has_and_does_not_give_is_withheld_once_it_was_asked_twice() -> None:
    seen = Silence()
    assert not seen.is_to_ask(1e9), "nothing was read yet: there is nothing to compare with"
    seen.on_read(EntryPosition(7, 3), 100.0)
    assert not seen.is_to_ask(100.0 + ASK_S / 2)
    assert seen.is_to_ask(100.0 + ASK_S)
    seen.on_end(EntryPosition(7, 4), 110.0)
    once = seen.is_withheld
    assert not seen.is_to_ask(110.0 + ASK_S / 2)
    seen.on_end(EntryPosition(7, 4), 120.0)
    twice = seen.is_withheld
    seen.on_read(EntryPosition(7, 4), 121.0)
    assert (once, twice, seen.is_withheld) == (False, True, False), "once it may be on its way"


def test_of_what_was_there_at_the_beginning_others_may_have_acknowledged_what_is_behind_what_was_not() -> None:
    seen = Silence()
    seen.on_begin(EntryPosition(7, 10), 0.0)
    seen.on_read(EntryPosition(7, 5), 1.0)
    for at in range(1, 5):
        seen.on_end(EntryPosition(7, 10), at * ASK_S)
        assert not seen.is_withheld
    # this came since: nobody else can have acknowledged it
    seen.on_end(EntryPosition(7, 11), 5 * ASK_S)
    seen.on_end(EntryPosition(7, 11), 6 * ASK_S)
    assert seen.is_withheld


ADMIN = "http://a:8080"
TWO = "pulsar://a:6650,b:6650"
PROGRAMS = {
    "gateway": lambda url: Pulsar(service_url=url),
    "alerts": lambda url: ClusterSource(service_url=url),
    "registry": lambda url: RegistrySettings(service_url=url, tenants=("acme",), unsigned=True),
    "operator": lambda url: OperatorSettings(
        service_url=url, admin_url=ADMIN, regions=("eu",), tenants=("acme",), unsigned=True
    ),
    "canary": lambda url: WatchedCluster(service_url=url),
    "topology": lambda url: ClusterAddress(service_url=url, admin_url=ADMIN),
    "jobs": lambda url: ClusterSettings(name="hq", service_url=url, admin_url=ADMIN),
    "source": lambda url: SourceCluster(name="hq", service_url=url, admin_url=ADMIN),
}
GOOD = {
    TWO: TWO,
    "pulsar+ssl://a.example:6651,b.example:6651/": "pulsar+ssl://a.example:6651,b.example:6651",
    " pulsar://a:6650 , b:6650 ": TWO,
    "pulsar://a,b": "pulsar://a,b",
    "pulsar://127.0.0.1:6650": "pulsar://127.0.0.1:6650",
    "pulsar://pulsar_broker-0.svc.:6650": "pulsar://pulsar_broker-0.svc.:6650",
}
BAD = {
    "": "begin with pulsar:// or pulsar",
    "a:6650": "begin with pulsar:// or pulsar",
    "http://a:8080": "begin with pulsar:// or pulsar",
    "PULSAR://a": "begin with pulsar:// or pulsar",
    "pulsar://": "is not HOST:PORT",
    "pulsar://a:6650,": "is not HOST:PORT",
    "pulsar://a:66500": "is not HOST:PORT",
    "pulsar://a:0": "is not HOST:PORT",
    "pulsar://a b": "is not HOST:PORT",
    "pulsar://a:6650/tenant": "is not HOST:PORT",
    "pulsar://a:6650;b:6650": "is not HOST:PORT",
    "pulsar://a:6650,pulsar://b:6650": "the scheme stands once",
    "pulsar://user:secret@a:6650": "must not contain user and password",
    "pulsar://[::1]:6650": "does not support IPv6 addresses",
    "pulsar://a:6650,a:6650": "named twice",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_reads_an_address_alike(program: str) -> None:
    for text, url in GOOD.items():
        assert PROGRAMS[program](text).service_url == url  # type: ignore[attr-defined] # each of them has one
    for text, reason in BAD.items():
        with pytest.raises(ValidationError, match=reason):
            PROGRAMS[program](text)


@pytest.mark.parametrize("url", GOOD.values())
def test_pulsar_s_own_client_takes_what_the_settings_take(url: str) -> None:
    close_quietly(open_pulsar_client(url, PulsarAccess(), timeout_s=1))


HOSTS = st.lists(st.from_regex(r"[a-z][a-z0-9]{0,8}(\.example)?(:[1-9][0-9]{0,3})?", fullmatch=True), min_size=1)


@given(
    hosts=HOSTS.filter(lambda hosts: len({*hosts}) == len(hosts)),
    scheme=st.sampled_from(["pulsar", "pulsar+ssl", "http", "https"]),
    blanks=st.sampled_from(["", " "]),
)
@settings(max_examples=examples(100))
def test_an_address_has_as_many_hosts_as_are_written(hosts: list[str], scheme: str, blanks: str) -> None:
    kind: TypeAdapter[str] = TypeAdapter(ServiceUrl if scheme.startswith("pulsar") else AdminUrl)
    url = kind.validate_python(f"{scheme}://{f'{blanks},{blanks}'.join(hosts)}{blanks}")
    assert each_host(url) == tuple(f"{scheme}://{host}" for host in hosts)
    assert kind.validate_python(url) == url


NOBODY = PulsarAccess()


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(5)


def dated(seconds_off: float) -> bytes:
    return f"HTTP/1.1 403 Forbidden\r\ndate: {formatdate(time.time() + seconds_off, usegmt=True)}\r\n\r\n".encode()


def test_the_clock_of_a_cluster_is_that_of_its_first_host_that_answers() -> None:
    with answering(dated(0)) as url:
        check_clock(f"http://127.0.0.1:1,{url.removeprefix('http://')}", NOBODY)


@pytest.mark.parametrize(("off_s", "said"), [(-40 * 86_400, "ahead of"), (70, "behind")])
def test_a_clock_that_is_off_by_more_than_a_minute_may_not_and_hears_by_how_much(off_s: float, said: str) -> None:
    with answering(dated(off_s)) as url, pytest.raises(ClockDiffers, match=said) as differs:
        check_clock(url, NOBODY)
    assert differs.value.ahead_s == pytest.approx(-off_s, abs=3)


@pytest.mark.parametrize("date", [b"", b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"])
def test_who_is_not_taken_for_who_we_say_that_we_are_is_refused_whatever_the_date(tmp_path: Path, date: bytes) -> None:
    answer = b"HTTP/1.1 401 Unauthorized\r\n" + date + b"\r\n<html>"
    with answering(answer) as url, pytest.raises(NotLetIn, match="has expired, or another issuer signed it"):
        check_clock(url, NOBODY)
    access = PulsarAccess(token_file=token_file(tmp_path, "jobs", ends_in_s=-5))
    with answering(answer) as url, pytest.raises(NotLetIn, match=r"token of jobs in .* ended at"):
        check_clock(url, access)


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nDate: soon\r\n\r\n"]
)
def test_an_answer_without_a_moment_is_no_clock(answer: bytes) -> None:
    with answering(answer) as url, pytest.raises(ClockUnknown):
        check_clock(url, NOBODY)
