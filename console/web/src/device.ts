// The track of a device on a day, split at gaps, coloured by speed or by zone.
import type { ExpressionSpecification, GeoJSONSource } from "maplibre-gl";
import { int16, int32, linesOf, placeAt, placesOf } from "./columns";
import { addFences, boxOf, colours, legendOf, makeMap, zoneColour, type FenceProperties } from "./map";

type By = "speed" | "zone";

/** Upper limits in km/h; colours that can be told apart without red and green. */
const speeds: [limit: number, colour: string, text: string][] = [
  [5, "#6b7280", "to 5 km/h"],
  [30, "#2563eb", "to 30 km/h"],
  [60, "#0891b2", "to 60 km/h"],
  [90, "#d97706", "to 90 km/h"],
  [Infinity, "#be185d", "over 90 km/h"],
];
const unknownColour = "#9ca3af";

interface Track {
  lines: [number, number][][];
  begins: Int32Array;
  speed: Int16Array;
  zone: Int16Array;
  zones: string[];
}

const speedColour = (dmps: number): string => {
  if (dmps < 0) return unknownColour;
  const kmh = (dmps / 10) * 3.6;
  return (speeds.find(([limit]) => kmh <= limit) as (typeof speeds)[number])[1];
};

/** Runs of one colour within the pieces of the track; each run begins where the one before it ends. */
function runs(track: Track, by: By, colourOfZone: (zone: string) => string): GeoJSON.FeatureCollection {
  const found = new Map<string, [number, number][][]>();
  track.lines.forEach((line, piece) => {
    const first = track.begins[piece] as number;
    let run: [number, number][] = [];
    let colour = "";
    line.forEach((place, at) => {
      const row = first + at;
      const zone = track.zone[row] as number;
      const is = by === "speed" ? speedColour(track.speed[row] as number) : zone < 0 ? unknownColour : colourOfZone(track.zones[zone] ?? "");
      if (is !== colour) {
        const last = run[run.length - 1];
        run = last ? [last] : [];
        found.set(is, [...(found.get(is) ?? []), run]);
        colour = is;
      }
      run.push(place);
    });
  });
  return {
    type: "FeatureCollection",
    features: [...found].map(([colour, coordinates]) => ({
      type: "Feature",
      properties: { colour },
      geometry: { type: "MultiLineString", coordinates: coordinates.filter((one) => one.length > 1) },
    })),
  };
}

function choice(element: HTMLElement, take: (by: By) => void): void {
  const bar = document.createElement("p");
  bar.className = "choice";
  for (const by of ["speed", "zone"] as const) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `Colour by ${by}`;
    button.setAttribute("aria-pressed", String(by === "speed"));
    button.addEventListener("click", () => {
      for (const one of bar.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one === button));
      take(by);
    });
    bar.append(button);
  }
  element.prepend(bar);
}

export async function draw(element: HTMLElement, data: Record<string, unknown>): Promise<void> {
  const columns = data["track"] as Record<string, unknown>;
  const fences = data["fences"] as GeoJSON.FeatureCollection;
  const places = placesOf(columns);
  const begins = int32(columns["begins"]);
  const track: Track = {
    lines: linesOf(places, begins),
    begins,
    speed: int16(columns["speed"]),
    zone: int16(columns["zone"]),
    zones: columns["zones"] as string[],
  };
  const ids = [...new Set(fences.features.map((one) => (one.properties as FenceProperties).id))].sort();
  const colourOfZone = (zone: string): string => zoneColour(Math.max(ids.indexOf(zone), 0));
  legendOf(element, [...speeds.map(([, , text], at): [string, string] => [`zone speed-${at}`, text]), ["zone speed-unknown", "unknown, or outside all zones"]], fences);
  const map = await makeMap(element, boxOf(track.lines.flat()));
  addFences(map, fences);
  const colour = colours();
  map.addSource("track", { type: "geojson", data: runs(track, "speed", colourOfZone) });
  const width = (more: number): ExpressionSpecification => ["interpolate", ["linear"], ["zoom"], 10, 1.6 + more, 13, 2.6 + more, 16, 5 + more];
  const layout = { "line-cap": "round", "line-join": "round" } as const;
  map.addLayer({ id: "track-casing", type: "line", source: "track", layout, paint: { "line-color": colour.selectedCasing, "line-width": width(2.6) } });
  map.addLayer({ id: "track", type: "line", source: "track", layout, paint: { "line-color": ["get", "colour"], "line-width": width(0) } });
  const last = places.longitude.length - 1;
  const ends: GeoJSON.Feature[] = last < 0 ? [] : [0, last].map((at) => ({
    type: "Feature",
    properties: { name: at ? "end" : "start" },
    geometry: { type: "Point", coordinates: placeAt(places, at) },
  }));
  map.addSource("ends", { type: "geojson", data: { type: "FeatureCollection", features: ends } });
  map.addLayer({ id: "ends", type: "circle", source: "ends", paint: { "circle-radius": 5, "circle-color": colour.selected, "circle-stroke-color": colour.selectedCasing, "circle-stroke-width": 2 } });
  map.addLayer({
    id: "end-name",
    type: "symbol",
    source: "ends",
    layout: { "text-field": ["get", "name"], "text-font": ["Noto Sans Medium"], "text-size": 11, "text-variable-anchor": ["left", "right"], "text-radial-offset": 0.9 },
    paint: { "text-color": colour.text, "text-halo-color": colour.halo, "text-halo-width": 1.4 },
  });
  choice(element, (by) => (map.getSource("track") as GeoJSONSource).setData(runs(track, by, colourOfZone)));
  map.once("idle", () => {
    element.dataset.drawn = "true";
  });
  Object.assign(element, { waybillMap: map });
}
