// Fences: all of a list, or two versions of one: the old border dashed, the new one solid, and what was added and removed.
import { addFences, boxOf, isDark, legendOf, makeMap, type Box } from "./map";
import type { Map } from "maplibre-gl";

type Collection = GeoJSON.FeatureCollection;

function placesOf(geometry: GeoJSON.Geometry): [number, number][] {
  if (geometry.type === "GeometryCollection") return geometry.geometries.flatMap(placesOf);
  return (geometry.coordinates as unknown[]).flat(3).reduce<[number, number][]>((places, value, at, all) => {
    if (at % 2 === 0) places.push([value as number, all[at + 1] as number]);
    return places;
  }, []);
}

/** The box of the region with the most features: those whose first places lie within two degrees of one. */
function busiest(features: GeoJSON.Feature[]): Box | null {
  let best: GeoJSON.Feature[] = [];
  for (const one of features) {
    const [x, y] = placesOf(one.geometry)[0] ?? [0, 0];
    const near = features.filter((other) => {
      const [otherX, otherY] = placesOf(other.geometry)[0] ?? [0, 0];
      return Math.abs(otherX - x) < 2 && Math.abs(otherY - y) < 2;
    });
    if (near.length > best.length) best = near;
  }
  return boxOf(best.flatMap((one) => placesOf(one.geometry)));
}

function addArea(map: Map, id: string, geometry: GeoJSON.Geometry | null, colour: string): void {
  if (!geometry) return;
  map.addSource(id, { type: "geojson", data: { type: "Feature", properties: { id }, geometry } });
  map.addLayer({ id, type: "fill", source: id, paint: { "fill-color": colour, "fill-opacity": 0.35 } }, "fence-line");
}

function addOld(map: Map, old: Collection): void {
  map.addSource("old", { type: "geojson", data: old });
  map.addLayer({
    id: "old-line",
    type: "line",
    source: "old",
    paint: { "line-color": isDark() ? "#e6edf3" : "#1f2933", "line-width": 2, "line-dasharray": [3, 2] },
  });
}

export async function draw(element: HTMLElement, data: Record<string, unknown>): Promise<void> {
  const shown = (data["fences"] ?? data["new"]) as Collection;
  const old = data["old"] as Collection | undefined;
  const features = [...shown.features, ...(old?.features ?? [])];
  const dark = isDark();
  if (old?.features.length) {
    legendOf(element, [
      ["difference-old", "before"],
      ["difference-new", "after"],
      ["difference-added", "added"],
      ["difference-removed", "removed"],
    ], shown);
  }
  const map = await makeMap(element, busiest(features.slice(0, 500)));
  addFences(map, shown);
  addArea(map, "added", (data["added"] ?? null) as GeoJSON.Geometry | null, dark ? "#6ee7a0" : "#166534");
  addArea(map, "removed", (data["removed"] ?? null) as GeoJSON.Geometry | null, dark ? "#ff9c9c" : "#b91c1c");
  if (old) addOld(map, old);
  map.once("idle", () => {
    element.dataset.drawn = "true";
  });
  Object.assign(element, { waybillMap: map });
}
