"""What lies under every map: land on a plane, streets of the user's own file, and their credit."""

import io
import json
import struct

import httpx
import pytest
from PIL import Image

from console.assets import Basemap
from simulator import generated_scenario
from simulator.folder import streets_of
from tests.console.conftest import Tab, console_of, serving


def test_the_base_map_is_served_by_ranges_and_named_on_each_page(served, streets):
    whole = httpx.get(f"{served.url}/basemap")
    part = httpx.get(f"{served.url}/basemap", headers={"range": "bytes=2-5"})
    assert whole.content == streets.read_bytes()
    assert (part.status_code, part.content) == (206, whole.content[2:6])
    assert 'data-basemap="geojson" data-basemap-credit="Streets: made by &lt;the&gt; simulator"' in served.html("/")


def test_a_base_map_that_does_not_exist_is_none(served, tmp_path):
    settings = served.console.settings.console
    assert Basemap.of(settings.model_copy(update={"basemap": tmp_path / "none.geojson"})) is None
    (tmp_path / "tiles.pmtiles").write_bytes(b"PMTiles")
    tiles = Basemap.of(settings.model_copy(update={"basemap": tmp_path / "tiles.pmtiles"}))
    assert tiles is not None
    assert tiles.kind == "pmtiles"


def test_land_is_planar_and_streets_are_drawn(served, tab):
    tab.open(served.url)
    # world-atlas has rings on a sphere; drawn as they are, they fill a band over the North Atlantic
    land = tab.on_map(
        "m.jumpTo({center: [-30, 63], zoom: 2})",
        "m.queryRenderedFeatures(m.project([-30, 63]), {layers: ['land']}).length",
    )
    assert land == 0
    assert tab.on_map("", "m.queryRenderedFeatures(m.project([-45, 70]), {layers: ['land']}).length") > 0
    streets = tab.on_map(
        "m.jumpTo({center: [10.0006, 53.5503], zoom: 13})",
        "m.queryRenderedFeatures({layers: ['basemap-street-main']}).length",
    )
    assert streets > 0
    credit = tab.page.evaluate("() => document.querySelector('.maplibregl-ctrl-attrib-inner').textContent")
    assert credit == "Land: Natural Earth | Streets: made by <the> simulator"


def test_each_street_is_there_once():
    scenario = generated_scenario(seed=7, vehicles=2, regions=("eu",))
    blocks = [
        tuple(map(tuple, block)) for one in streets_of(scenario)["features"] for block in one["geometry"]["coordinates"]
    ]
    assert len({frozenset(block) for block in blocks}) == len(blocks) > 800


# Tiles of a PMTiles archive, written by the public specification, version 3.

LAND, PINK, SEA = (23.3, 52.7), (200, 30, 160), (0xDF, 0xE7, 0xEE)


def archive(tile: bytes, tile_type: int, layers: list[str]) -> bytes:
    """An archive with the tile of the whole world. Nothing is compressed."""
    directory = bytes([1, 0, 1, *varint(len(tile)), 1])
    metadata = json.dumps({"vector_layers": [{"id": name, "fields": {}} for name in layers]}).encode()
    # a reader fetches 16 kB first: the tile lies in another range
    begin = 127 + len(directory)
    places = [127, len(directory), begin, len(metadata), begin + len(metadata), 0, 20_000, len(tile), 1, 1, 1]
    world = [-180_0000000, -85_0000000, 180_0000000, 85_0000000]
    header = struct.pack("<7sB11Q6B4iB2i", b"PMTiles", 3, *places, 1, 1, 1, tile_type, 0, 0, *world, 0, 0, 0)
    return (header + directory + metadata).ljust(20_000, b"\0") + tile


def varint(number: int) -> bytes:
    low = number & 127
    return bytes([low]) if number < 128 else bytes([low | 128]) + varint(number >> 7)


def message(field: int, body: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(body)) + body


def image() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (256, 256), PINK).save(file, "PNG")
    return file.getvalue()


def sea_everywhere() -> bytes:
    """A vector tile with a square of water that covers it."""
    side = varint(2 * 4096)
    ring = b"\x09\0\0\x1a" + side + b"\0" + b"\0" + side + varint(2 * 4096 - 1) + b"\0" + b"\x0f"
    feature = b"\x18\x03" + message(4, ring)
    return message(3, b"\x78\x02" + message(1, b"water") + message(2, feature) + b"\x28" + varint(4096))


@pytest.mark.parametrize(
    ("tiles", "colour"), [((image(), 2, []), PINK), ((sea_everywhere(), 1, ["water"]), SEA)], ids=["images", "vectors"]
)
def test_tiles_of_an_archive_are_read_by_ranges_and_drawn(page_lake, browser, tmp_path, tiles, colour):
    file = tmp_path / "world.pmtiles"
    file.write_bytes(archive(*tiles))
    for served in serving(console_of(page_lake, basemap=str(file))):
        tab = Tab(browser.new_page(viewport={"width": 1280, "height": 800}), served.url)
        statuses: list[int] = []
        tab.page.on("response", lambda got, to=statuses: got.url.endswith("/basemap") and to.append(got.status))
        tab.open(f"{served.url}/fences")
        tab.on_map(f"m.jumpTo({{center: [{LAND[0] - 4}, {LAND[1]}], zoom: 3}})", "0")
        place = tab.page.evaluate(
            "at => { const m = document.querySelector('[data-island]').waybillMap, p = m.project(at);"
            " const r = m.getContainer().getBoundingClientRect(); return [p.x + r.left, p.y + r.top] }",
            [*LAND],
        )
        [drawn] = tab.pixels([place])
        tab.page.close()
        assert max(abs(one - other) for one, other in zip(drawn, colour, strict=True)) < 4, drawn
        assert set(statuses) == {206}
        assert len(statuses) >= 2
        assert tab.faults == []
