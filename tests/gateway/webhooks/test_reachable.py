"""A message goes to public addresses and to those that are named, whatever a name stands for."""

from __future__ import annotations

import socket
import ssl
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.webhooks.config import PostTimes, is_reachable
from gateway.webhooks.posting import HttpOutcome, post
from tests.gateway.webhooks.hook_server import LOOPBACK, hook_server

CONTEXT = ssl.create_default_context()
TIMES = PostTimes(connect_s=1, read_s=0.5, total_s=1)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_reached(address: str) -> None:
    assert is_reachable(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",  # noqa: S104 - not bound to
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "192.0.2.1",
        "::",
        "::1",
        "::127.0.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        # instance metadata and hosts of virtual machines, at Oracle, Azure, Alibaba and Google
        "192.0.0.192",
        "168.63.129.16",
        "100.100.100.200",
        "fd20:ce::254",
        "64:ff9b::a83f:8110",
        "::ffff:168.63.129.16",
        "64:ff9b:1::c000:c0",
        "192.88.99.1",
        "2002:a83f:8110::1",
        "2001:0:a83f:8110::1",
        "3fff::1",
        "no address",
        "",
    ],
)
def test_what_is_of_a_machine_a_link_or_a_site_is_not(address: str) -> None:
    assert not is_reachable(address)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_in_whatever_ipv6_carries_it(address: IPv4Address) -> None:
    plain, number = is_reachable(str(address)), int(address)
    assert is_reachable(str(IPv6Address((0xFFFF << 32) | number))) == plain
    assert is_reachable(str(IPv6Address((0x64FF9B << 96) | number))) == plain
    assert not is_reachable(str(IPv6Address((0x2002 << 112) | (number << 80) | 1))), "6to4"


@given(st.ip_addresses())
def test_a_network_that_is_named_is_reached_and_none_other(address: IPv4Address | IPv6Address) -> None:
    plain = getattr(address, "ipv4_mapped", None) or address
    assert is_reachable(str(address), (ip_network(plain),))
    elsewhere = IPv4Network("10.0.0.0/8"), IPv6Network("fc00::/7")
    if not any(plain.version == one.version and plain in one for one in elsewhere):
        assert is_reachable(str(address), elsewhere) == is_reachable(str(address))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1"])
def test_whatever_a_name_stands_for_no_connection_is_opened_that_is_not_allowed(host: str) -> None:
    with hook_server() as server:
        url = f"http://{host}:{server.listener.getsockname()[1]}/"
        outcome = post(url, {"Idempotency-Key": "k"}, b"{}", TIMES, CONTEXT)
        assert (outcome.reason, outcome.is_final) == ("forbidden", False)
        assert "networks" in outcome.detail
        assert server.connections == 0
        assert post(url, {"Idempotency-Key": "k"}, b"{}", TIMES, CONTEXT, networks=(LOOPBACK,)).is_delivered


def test_of_several_addresses_those_that_are_allowed_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with hook_server() as server:
        port = server.listener.getsockname()[1]
        family, kind = socket.AF_INET, socket.SOCK_STREAM
        found = [(family, kind, 6, "", (host, port)) for host in ("10.0.0.1", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        outcome = post(
            f"http://hooks.example:{port}/", {"Idempotency-Key": "k"}, b"{}", TIMES, CONTEXT, networks=(LOOPBACK,)
        )
        assert outcome == HttpOutcome(True, "delivered", "200 OK")


def test_the_answer_that_redirects_to_an_address_within_is_not_followed() -> None:
    with hook_server() as server, hook_server() as within:
        reply = f"HTTP/1.1 302 Found\r\nLocation: {within.url}/\r\nContent-Length: 0\r\n\r\n".encode()
        server.behave = lambda connection, _: connection.sendall(reply)
        outcome = post(f"{server.url}/", {"Idempotency-Key": "k"}, b"{}", TIMES, CONTEXT, networks=(LOOPBACK,))
        assert (outcome.reason, outcome.is_final, within.connections) == ("redirected", True, 0)
