"""The fleet's page: every device once, by its newest usable fix; the picture has the rows of the table."""

import httpx


def test_the_table_has_each_device_with_its_newest_fix(served):
    page = served.json("/")
    rows = {row["device"]: row for row in page["tables"]["devices"]["rows"]}
    records = served.console.lake.rows("records", ["device", "device_time", "kind"]).to_pylist()
    newest = {
        device: max(one["device_time"] for one in records if one["device"] == device and one["kind"] == "position")
        for device in rows
    }
    assert len(rows) == 2
    assert {device: row["time"] for device, row in rows.items()} == {
        device: time.isoformat().replace("+00:00", "Z") for device, time in newest.items()
    }


def test_the_page_works_without_javascript_and_refuses_a_strange_host(served):
    assert "eu-0001" in served.html("/")
    assert httpx.get(served.url, headers={"host": "elsewhere.example"}).status_code == 400
    assert httpx.post(served.url).status_code == 405
    assert httpx.get(f"{served.url}/?box=1,2").status_code == 400


def test_the_map_draws_each_device_and_fence(served, tab):
    tab.open(served.url)
    assert "SwiftShader" in tab.renderer
    drawn = tab.page.evaluate(
        "() => { const m = document.querySelector('[data-island]').waybillMap;"
        " return [...new Set(m.queryRenderedFeatures({layers: ['fence-line']}).map(f => f.properties.id))].length }"
    )
    assert drawn > 0
