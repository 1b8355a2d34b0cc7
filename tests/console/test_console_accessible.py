"""Every page: no violation of axe-core in light and dark, no horizontal scroll on a phone, all by the keyboard."""

from pathlib import Path

import pytest

from tests.console.conftest import ASKED, Tab, addresses_of_pages

AXE = Path(__file__).parents[2] / "console" / "web" / "node_modules" / "axe-core" / "axe.min.js"
FEW = ("/", "/device/{tenant}/{device}", "/health")
"""A map with a live table, a map with a day, and tables alone."""


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["few", "all"])
def test_no_page_has_a_violation_or_scrolls_sideways_on_a_phone(browser, billed, few):
    addresses = addresses_of_pages(billed)
    if few:
        addresses = {path: addresses[path] for path in FEW}
    source, violations, wide = AXE.read_text(encoding="utf-8"), [], []
    page = browser.new_page(viewport={"width": 360, "height": 740}, color_scheme="dark")
    tab = Tab(page, billed.url)
    for address in addresses.values():
        tab.open(billed.url + address)
        # the strict CSP refuses a script tag
        page.evaluate(f"() => {{ {source} }}")
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            found = page.evaluate(
                "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
                ".map(one => `${one.id}: ${one.nodes.map(node => node.html).slice(0, 2)}`)"
            )
            violations += [f"{address} {scheme} {one}" for one in found]
        if page.evaluate("() => document.documentElement.scrollWidth > innerWidth"):
            wide.append(address)
        page.emulate_media(color_scheme="dark")
    page.close()
    assert violations == []
    assert wide == []
    assert tab.faults == []


def test_the_keyboard_reaches_the_map_its_tools_and_the_tables(served, tab):
    tab.open(served.url + ASKED["/where"])
    reached = []
    for _ in range(45):
        tab.page.keyboard.press("Tab")
        reached.append(
            tab.page.evaluate(
                "() => { const e = document.activeElement;"
                " return e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim() }"
            )
        )
    for name in ("Skip to content", "Zoom in", "Map", "Draw a box", "t-devices", "t-visits"):
        assert name in reached, (name, reached)
    tab.page.get_by_label("Map", exact=True).focus()
    before = tab.page.evaluate("() => document.querySelector('[data-island]').waybillMap.getZoom()")
    tab.page.keyboard.press("-")
    tab.wait_for(f"return document.querySelector('[data-island]').waybillMap.getZoom() < {before} - 0.5")
