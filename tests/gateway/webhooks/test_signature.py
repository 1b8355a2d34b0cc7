"""A message shows that it is ours, and nobody else can make one that does."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.webhooks.posting import secrets_of, signature_header

SECRET = b"0123456789abcdef01234567"


def text_of(*secrets: bytes) -> str:
    return "\n".join(f"whsec_{base64.b64encode(one).decode()}" for one in secrets)


def test_it_is_that_of_standard_webhooks() -> None:
    # the example of the specification's reference libraries
    (secret,) = secrets_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    made = signature_header([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.binary(min_size=24, max_size=64), st.text(max_size=20), st.integers(0, 1 << 40), st.binary(max_size=200))
def test_it_is_right_for_this_key_time_and_body_alone(secret: bytes, key: str, stamp: int, body: bytes) -> None:
    def right(key: str, stamp: int, body: bytes) -> str:
        digest = hmac.new(secret, f"{key}.{stamp}.".encode() + body, hashlib.sha256).digest()
        return f"v1,{base64.b64encode(digest).decode()}"

    made = signature_header([secret], key, stamp, body)
    assert made == right(key, stamp, body)
    assert made not in {right(key, stamp + 1, body), right(key, stamp, body + b" "), right(key + "x", stamp, body)}


@pytest.mark.parametrize(
    "text",
    ["", "\n\n", "hunter2", "whsec_!!!", text_of(b"short"), text_of(b"x" * 65), text_of(*[SECRET] * 5)],
)
def test_what_is_no_secret_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="secret") as refused:
        secrets_of(text)
    assert not text.strip() or text.strip() not in str(refused.value)
