// The fixes of one hour of a charge, the rest of the vehicle's hour beside them, and the borders as they were in force.
import type { Map } from "maplibre-gl";
import type { Place } from "./columns";
import { addFences, addLine, collectionOf, colours, feature, finish, legendOf, makeMap, show } from "./map";
import { selectRow } from "./page";

interface Fix {
  id: string;
  longitude: number;
  latitude: number;
  time: string;
}

const placeOf = (one: Fix): Place => [one.longitude, one.latitude];

function addFixes(map: Map, fixes: Fix[]): void {
  const colour = colours();
  const points = fixes.map((one) => feature({ type: "Point", coordinates: placeOf(one) }, { id: one.id }));
  map.addSource("fixes", { type: "geojson", data: collectionOf(points) });
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
  map.addSource("chosen", { type: "geojson", data: collectionOf([]) });
  map.addLayer({
    id: "chosen",
    type: "circle",
    source: "chosen",
    paint: { "circle-radius": 9, "circle-color": colour.selected, "circle-stroke-color": colour["selected-casing"], "circle-stroke-width": 3 },
  });
}

/** Rows of the table and fixes of the map show each other; the camera stays. */
function link(map: Map, fixes: Fix[]): void {
  const known = new globalThis.Map(fixes.map((one) => [one.id, one]));
  const choose = (id: string | null | undefined): void => {
    const fix = known.get(id ?? "");
    if (!fix) return;
    selectRow(fix.id);
    show(map, "chosen", feature({ type: "Point", coordinates: placeOf(fix) }));
  };
  map.on("click", "fixes", (event) => choose(event.features?.[0]?.properties["id"] as string | undefined));
  document.querySelector("#records")?.addEventListener("click", (event) => {
    choose((event.target as Element).closest("tr[data-id]")?.getAttribute("data-id"));
  });
}

export async function draw(element: HTMLElement, data: Record<string, unknown>): Promise<void> {
  const fixes = data["fixes"] as Fix[];
  const track = data["track"] as Place[][];
  const fences = data["fences"] as GeoJSON.FeatureCollection;
  legendOf(element, [
    ["state state-driving", `records of this charge ${fixes.length}`],
    ["state state-track", "the rest of the hour"],
    ["state state-border", `borders in force ${fences.features.length}`],
  ]);
  const map = await makeMap(element, [fixes.length ? fixes.map(placeOf) : track.flat()]);
  addFences(map, fences);
  addLine(map, "track", feature({ type: "MultiLineString", coordinates: track }), {
    "line-color": colours().ring,
    "line-width": ["interpolate", ["linear"], ["zoom"], 10, 1, 14, 2],
    "line-opacity": 0.7,
  });
  addFixes(map, fixes);
  link(map, fixes);
  finish(element, map);
}
