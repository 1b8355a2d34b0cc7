// Fences: all of a list, or two versions of one: the old border dashed, the new one solid, and what was added and removed.
import { addFences, addLine, colours, feature, finish, legendOf, makeMap, placesIn } from "./map";
import type { Map } from "maplibre-gl";

type Collection = GeoJSON.FeatureCollection;

function addArea(map: Map, id: "added" | "removed", geometry: unknown, colour: string): void {
  if (!geometry) return;
  map.addSource(id, { type: "geojson", data: feature(geometry as GeoJSON.Geometry, { id }) });
  map.addLayer({ id, type: "fill", source: id, paint: { "fill-color": colour, "fill-opacity": 0.35 } }, "fence-line");
}

export async function draw(element: HTMLElement, data: Record<string, unknown>): Promise<void> {
  const shown = (data["fences"] ?? data["new"]) as Collection;
  const old = data["old"] as Collection | undefined;
  if (old?.features.length) {
    legendOf(element, [
      ["difference-old", "before"],
      ["difference-new", "after"],
      ["difference-added", "added"],
      ["difference-removed", "removed"],
    ]);
  }
  const map = await makeMap(element, [...shown.features, ...(old?.features ?? [])].map((one) => [...placesIn(one.geometry)]));
  const colour = colours();
  addFences(map, shown);
  addArea(map, "added", data["added"], colour.good);
  addArea(map, "removed", data["removed"], colour.bad);
  if (old) addLine(map, "old-line", old, { "line-color": colour.text, "line-width": 2, "line-dasharray": [3, 2] });
  finish(element, map);
}
