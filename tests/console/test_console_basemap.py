"""What lies under every map: land on a plane, streets of the user's own file, and their credit."""

import httpx

from console.assets import Basemap
from simulator import generated_scenario
from simulator.folder import streets_of


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
