"""Pictures of six pages of the console, for README and docs: `python -m tests.console.pictures CLOUD_TOML`."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import sync_playwright

from cloud_jobs.billing.contracts.account import CANARY
from cloud_jobs.commands import load_settings
from cloud_jobs.lake.tables import Lake
from console.context import Console
from console.page import address
from tests.console.conftest import BROWSER_ARGUMENTS, CHROMIUM, Tab, serving

PICTURES: Final = Path(__file__).resolve().parents[2] / "docs" / "pictures"
MOST_BYTES: Final = 150_000
_COLOURS: Final = 256


def addresses(lake: Lake) -> dict[str, str]:
    """The six pages, with what the lake has: its largest document, and the drive of a customer's device."""
    documents = lake.rows("documents", ["number", "net_minor", "currency"]).to_pylist()
    number = max(documents, key=lambda row: (row["currency"] == "EUR", row["net_minor"]))["number"]
    events = lake.rows("geofence_events", ["tenant", "device", "time"]).to_pylist()
    event = max((row for row in events if row["tenant"] != CANARY), key=lambda row: row["time"])
    last, tenant = event["time"], event["tenant"]
    begin, end = (f"{last - timedelta(minutes=before):%Y-%m-%dT%H:%M:%SZ}" for before in (40, 5))
    return {
        "fleet": address(tenant=tenant, region="eu", at=f"{last + timedelta(seconds=30):%Y-%m-%dT%H:%M:%SZ}"),
        "device": address(
            "device", tenant, min(row["device"] for row in events if row["tenant"] == tenant), day=f"{last:%Y-%m-%d}"
        ),
        "document": address("documents", number),
        # the charged hour of a customer is two links further
        "hour": address("documents", number, "lines", "3"),
        "replay": address("replay", tenant=tenant, start=begin, end=end),
        "health": address("health"),
    }


def main() -> None:
    """Take the pictures."""
    settings = load_settings(Path(sys.argv[1]))
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=BROWSER_ARGUMENTS)
        for served in serving(
            Console(settings.model_copy(update={"console": settings.console.model_copy(update={"port": 0})}))
        ):
            for name, address in addresses(settings.tables).items():
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                tab = Tab(page, served.url)
                tab.open(served.url + address)
                for table in ("vehicles", "hours") if name == "hour" else ():
                    tab.open(served.url + str(page.get_attribute(f"#{table} tbody a", "href")))
                file = PICTURES / f"console-{name}.png"
                page.screenshot(path=file)
                page.close()
                shrink(file)
        browser.close()


def shrink(file: Path) -> None:
    """Reduces a picture to few colours; a page allows MOST_BYTES."""
    Image.open(file).convert("RGB").quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        file, optimize=True
    )
    assert file.stat().st_size <= MOST_BYTES, f"{file.name} has {file.stat().st_size:,} bytes"


if __name__ == "__main__":
    main()
