"""Scripts and styles that Vite built, by their names in its manifest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATIC: Final = Path(__file__).parent / "static"
_MANIFEST: Final = STATIC / ".vite" / "manifest.json"


@dataclass(frozen=True, slots=True)
class Assets:
    """The addresses of the built files. Without a build, pages have their tables and no pictures."""

    script: str = ""
    styles: tuple[str, ...] = ()

    @classmethod
    def built(cls, entry: str = "src/main.ts") -> Assets:
        """What the last build wrote; empty if there was none."""
        try:
            manifest = json.loads(_MANIFEST.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        of_entry = manifest[entry]
        return cls(f"/static/{of_entry['file']}", tuple(f"/static/{name}" for name in of_entry.get("css", ())))
