"""Scripts and styles that Vite built, by their names in its manifest; and the user's own base map."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.responses import FileResponse, Response

from cloud_jobs.job_settings import ConsoleSettings

STATIC: Final = Path(__file__).parent / "static"
_WEB: Final = Path(__file__).parent / "web"
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


def are_stale() -> bool:
    """Whether the scripts were built of other sources than those of this source tree."""
    if not (_WEB / "src").is_dir() or not _MANIFEST.is_file():
        return False
    names = [f"src/{name}" for name in sorted(one.name for one in (_WEB / "src").iterdir())]
    made = hashlib.sha256()
    for name in (*names, "package-lock.json", "vite.config.ts"):
        made.update(f"{name}\n".encode() + (_WEB / name).read_bytes())
    built = _MANIFEST.with_name("sources")
    return not built.is_file() or built.read_text() != made.hexdigest()


@dataclass(frozen=True, slots=True)
class Basemap:
    """The user's own map under every picture. `kind`: `geojson` or `pmtiles`. `credit`: who made it."""

    file: Path
    credit: str = ""

    @classmethod
    def of(cls, settings: ConsoleSettings) -> Basemap | None:
        """None if the settings name none, or the file does not exist: maps then have land and graticule."""
        file = settings.basemap
        return cls(file, settings.basemap_credit) if file is not None and file.is_file() else None

    @property
    def kind(self) -> str:
        return "pmtiles" if self.file.suffix == ".pmtiles" else "geojson"

    def answer(self) -> Response:
        """The file, or the range of it that the request asks for."""
        media = "application/vnd.pmtiles" if self.kind == "pmtiles" else "application/geo+json"
        return FileResponse(self.file, media_type=media, headers={"cache-control": "private, max-age=600"})
