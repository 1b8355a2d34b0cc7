"""One webhook's way against a real server: it waits for itself alone, and every delivery ends."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.webhooks import posting
from gateway.webhooks.config import BACKOFF_MAX_S, WebhookSettings
from gateway.webhooks.posting import EndedDelivery, HttpOutcome, SignedPost, WebhookDelivery, WebhookQueue, next_wait_s
from tests.gateway.webhooks.hook_server import HookServer, Request, answers, hook_server, sends
from tests.waiting import PATIENCE, wait_until


class Ended(list[EndedDelivery]):
    @property
    def reasons(self) -> dict[str, str]:
        return {one.delivery.key: one.reason for one in self}


MakeQueue = Callable[..., tuple[WebhookQueue, Ended]]


@pytest.fixture
def server() -> Iterator[HookServer]:
    with hook_server() as running:
        yield running


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeQueue]:
    with ExitStack() as stack:

        def make(server: HookServer, **more: Any) -> tuple[WebhookQueue, Ended]:
            settings, ended = server.settings(tmp_path, **more), Ended()
            made = WebhookQueue("ops", settings, SignedPost(settings), ended.append)
            made.start()
            stack.callback(made.stop)
            return made, ended

        yield make


def delivery(key: str, body: bytes = b"{}") -> WebhookDelivery:
    return WebhookDelivery(key, "ops", "acme", ("acme/all",), body, taken_s=time.monotonic())


def failing(times: int, then: Any = None) -> Callable[[Any, Request], None]:
    seen: dict[str, int] = {}

    def behave(connection: Any, request: Request) -> None:
        seen[request.key] = seen.get(request.key, 0) + 1
        (answers("500 Oops") if seen[request.key] <= times else then or answers())(connection, request)

    return behave


def test_what_fails_is_sent_again_with_the_same_key_and_content_and_a_new_time(
    server: HookServer, make: MakeQueue
) -> None:
    server.behave = failing(2)
    made, ended = make(server)
    made.add(delivery("a/1", b'{"n":1}'))
    wait_until(lambda: ended)
    assert ended.reasons == {"a/1": "delivered"}
    assert server.keys == ["a/1"] * 3
    assert {one.body for one in server.requests} == {b'{"n":1}'}
    assert all(one.is_signed() for one in server.requests)


def test_it_ends_when_its_age_is_used_up_and_at_once_where_it_is_refused(server: HookServer, make: MakeQueue) -> None:
    server.by_path = {"/500": answers("500 Oops"), "/400": answers("400 No"), "/301": answers("301 Moved")}
    for path, (reason, attempts) in {"/500": ("expired", 1), "/400": ("refused", 1), "/301": ("redirected", 1)}.items():
        made, ended = make(server, path=path, backoff_first_s=5, max_age_s=1)
        made.add(delivery(path))
        wait_until(lambda ended=ended: ended)  # type: ignore[misc]
        assert [(one.reason, one.delivery.attempts) for one in ended] == [(reason, attempts)], path


def test_one_that_hangs_drips_or_refuses_holds_up_no_other(server: HookServer, make: MakeQueue) -> None:
    with hook_server() as bad, hook_server() as dead:
        bad.hang()
        dead.behave = sends(b"")
        hanging, never = make(bad)
        dying, _ = make(dead)
        for number in range(50):
            hanging.add(delivery(f"h/{number}"))
            dying.add(delivery(f"d/{number}"))
        good, ended = make(server)
        began_s = time.monotonic()
        for number in range(200):
            good.add(delivery(f"g/{number}"))
        wait_until(lambda: len(ended) == 200)
        assert time.monotonic() - began_s < 10 * PATIENCE
        assert not never.reasons or "delivered" not in never.reasons.values()


def test_a_full_queue_says_so_and_has_room_again_later(
    server: HookServer, make: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "MAX_WAITING", 3)
    gate = threading.Event()
    server.behave = lambda connection, request: (gate.wait(30), answers()(connection, request))[1]
    made, ended = make(server, parallel=1, timeout_s=60)
    assert [made.add(delivery(f"a/{number}")) for number in range(5)] == [True] * 3 + [False] * 2
    gate.set()
    wait_until(lambda: len(ended) == 3)
    assert made.add(delivery("a/9"))
    wait_until(lambda: len(ended) == 4)


def test_who_asks_to_be_left_alone_is_for_every_message(server: HookServer, make: MakeQueue) -> None:
    times: list[float] = []

    def behave(connection: Any, request: Request) -> None:
        times.append(time.monotonic())
        (answers("429 Slow down", "Retry-After: 1") if len(times) == 1 else answers())(connection, request)

    server.behave = behave
    made, ended = make(server, parallel=1)
    for number in range(5):
        made.add(delivery(f"a/{number}"))
    wait_until(lambda: len(ended) == 5)
    assert times[1] - times[0] >= 0.9
    assert set(ended.reasons.values()) == {"delivered"}


def test_after_a_stop_nothing_is_begun_and_what_waits_has_not_ended(server: HookServer, make: MakeQueue) -> None:
    server.hang()
    made, ended = make(server, parallel=1)
    for number in range(3):
        made.add(delivery(f"a/{number}"))
    wait_until(lambda: len(server.requests) == 1)
    made.stop()
    assert made.join(time.monotonic() + 5)
    assert len(server.requests) == 1
    assert ended == []


def test_a_secret_that_changes_signs_the_next_message_and_one_that_is_spoilt_fails_the_attempt(
    server: HookServer, tmp_path: Path
) -> None:
    settings = server.settings(tmp_path)
    post = SignedPost(settings)
    former = settings.secret_file.read_text()
    settings.secret_file.write_text("spoilt")
    outcome = post(delivery("a/1"))
    assert (outcome.reason, outcome.is_final, "spoilt" in outcome.detail) == ("failed", False, False)
    settings.secret_file.write_text(former.replace("MDEy", "MTEy", 1))
    assert post(delivery("a/2")).is_delivered
    assert [one.is_signed() for one in server.requests] == [False]


FAILED = HttpOutcome(False, "failed", "500")
RETRIES = st.builds(
    WebhookSettings,
    url=st.just("https://hooks.example/"),
    secret_file=st.just(Path("secret")),
    accounts=st.just(("*",)),
    backoff_first_s=st.floats(0.01, 300),
    max_age_s=st.floats(1, 10_000),
)
JITTER = st.floats(0, 1, exclude_max=True)


@given(RETRIES, JITTER, st.floats(0, 5000) | st.none())
def test_every_delivery_ends_within_its_age(retry: WebhookSettings, jitter: float, pause_s: float | None) -> None:
    age_s = 0.0
    for attempt in range(1, 100):
        wait_s = next_wait_s(FAILED._replace(pause_s=pause_s), attempt, age_s, retry, lambda: jitter)
        if wait_s is None:
            return
        assert (pause_s or 0) <= wait_s <= max(BACKOFF_MAX_S, pause_s or 0)
        age_s += wait_s
        assert age_s <= retry.max_age_s
    raise AssertionError("it never ends")


@given(RETRIES, JITTER, st.integers(1, 60), st.floats(0, 1e9))
def test_what_is_final_is_never_tried_again(retry: WebhookSettings, jitter: float, attempt: int, age_s: float) -> None:
    for reason in ("delivered", "refused", "redirected"):
        assert next_wait_s(HttpOutcome(True, reason, ""), attempt, age_s, retry, lambda: jitter) is None
