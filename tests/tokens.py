"""Tokens (JWT) for tests: whom they name, and when they end. Nobody checks their signature."""

import base64
import json
import time
from pathlib import Path
from typing import Any


def token_text(role: str = "operator", **claims: Any) -> str:
    parts: tuple[dict[str, Any], ...] = ({"alg": "none"}, {"sub": role, **claims}, {})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)


def token_file(folder: Path, role: str = "operator", *, ends_in_s: float, life_s: float = 604_800) -> Path:
    ends_s = int(time.time() + ends_in_s)
    file = folder / f"{role}.token"
    file.write_text(token_text(role, iat=ends_s - int(life_s), nbf=ends_s - int(life_s), exp=ends_s))
    return file
