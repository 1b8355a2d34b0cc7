// The fixes of one hour of a charge, the rest of the vehicle's hour beside them, and the borders as they were in force.
import type { Map } from "maplibre-gl";
import { addFences, boxOf, colours, makeMap } from "./map";

interface Fix {
  id: string;
  longitude: number;
  latitude: number;
  time: string;
}

type Place = [longitude: number, latitude: number];

function addTrack(map: Map, track: Place[][]): void {
  const colour = colours();
  map.addSource("track", {
    type: "geojson",
    data: { type: "Feature", properties: {}, geometry: { type: "MultiLineString", coordinates: track } },
  });
  map.addLayer({
    id: "track",
    type: "line",
    source: "track",
    layout: { "line-cap": "round", "line-join": "round" },
    paint: { "line-color": colour.ring, "line-width": ["interpolate", ["linear"], ["zoom"], 10, 1, 14, 2], "line-opacity": 0.7 },
  });
}

function addFixes(map: Map, fixes: Fix[]): void {
  const colour = colours();
  map.addSource("fixes", {
    type: "geojson",
    data: {
      type: "FeatureCollection",
      features: fixes.map((one) => ({
        type: "Feature",
        properties: { id: one.id },
        geometry: { type: "Point", coordinates: [one.longitude, one.latitude] },
      })),
    },
  });

  map.addLayer({
    id: "fixes",
    type: "circle",
    source: "fixes",
    paint: {
      "circle-radius": ["interpolate", ["linear"], ["zoom"], 9, 2, 12, 3.5, 15, 6],
      "circle-color": colour.driving,
      "circle-stroke-color": colour.circle,
      "circle-stroke-width": ["interpolate", ["linear"], ["zoom"], 9, 0.5, 14, 1.5],
    },
  });
  map.addSource("chosen", { type: "geojson", data: { type: "FeatureCollection", features: [] } });
  map.addLayer({
    id: "chosen",
    type: "circle",
    source: "chosen",
    paint: {
      "circle-radius": 9,
      "circle-color": colour.selected,
      "circle-stroke-color": colour.selectedCasing,
      "circle-stroke-width": 3,
    },
  });
}

function legend(element: HTMLElement, fixes: Fix[], fences: GeoJSON.FeatureCollection): void {
  const list = document.createElement("ul");
  list.className = "legend";
  const items: [string, string][] = [
    ["state state-driving", `records of this charge ${fixes.length}`],
    ["state state-track", "the rest of the hour"],
    ["state state-border", `borders in force ${fences.features.length}`],
  ];
  for (const [style, text] of items) {
    const item = document.createElement("li");
    item.className = style;
    item.textContent = text;
    list.append(item);
  }
  element.append(list);
}

/** Rows of the table and fixes of the map show each other; the camera stays. */
function link(map: Map, fixes: Fix[]): void {
  const known = new globalThis.Map(fixes.map((one) => [one.id, one]));
  const choose = (fix: Fix, row: Element | null): void => {
    document.querySelector("tr.selected")?.classList.remove("selected");
    row?.classList.add("selected");
    const source = map.getSource("chosen") as import("maplibre-gl").GeoJSONSource;
    source.setData({ type: "Feature", properties: {}, geometry: { type: "Point", coordinates: [fix.longitude, fix.latitude] } });
  };
  map.on("click", "fixes", (event) => {
    const fix = known.get(String(event.features?.[0]?.properties["id"]));
    if (!fix) return;
    const row = document.querySelector(`tr[data-id="${CSS.escape(fix.id)}"]`);
    choose(fix, row);
    row?.scrollIntoView({ block: "nearest" });
  });
  document.querySelector("#records")?.addEventListener("click", (event) => {
    const row = (event.target as Element).closest("tr[data-id]");
    const fix = row && known.get(row.getAttribute("data-id") ?? "");
    if (row && fix) choose(fix, row);
  });
}

export async function draw(element: HTMLElement, data: Record<string, unknown>): Promise<void> {
  const fixes = data["fixes"] as Fix[];
  const track = data["track"] as Place[][];
  const fences = data["fences"] as GeoJSON.FeatureCollection;
  legend(element, fixes, fences);
  const places: Place[] = fixes.map((one) => [one.longitude, one.latitude]);
  const map = await makeMap(element, boxOf(places.length ? places : track.flat()));
  addFences(map, fences);
  addTrack(map, track);
  addFixes(map, fixes);
  link(map, fixes);
  map.once("idle", () => {
    element.dataset.drawn = "true";
  });
  Object.assign(element, { waybillMap: map });
}
