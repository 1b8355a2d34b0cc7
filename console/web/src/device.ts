// The track of a device on a day, split at gaps, coloured by speed or by zone.
import type { ExpressionSpecification } from "maplibre-gl";
import { int16, int32, linesOf, placeAt, placesOf, type Place } from "./columns";
import { addFences, collectionOf, colours, type Entry, feature, type FenceProperties, finish, legendOf, makeMap, round, show, zoneColour } from "./map";
import { make, style } from "./page";

type By = "speed" | "zone";

/** Upper limits in km/h of the steps of one hue. */
const limits = [5, 30, 60, 90, Infinity];
const unknownColour = "#9ca3af";

interface Track {
  lines: Place[][];
  begins: Int32Array;
  speed: Int16Array;
  zone: Int16Array;
  zones: string[];
}

const speedColour = (dmps: number): string => {
  if (dmps < 0) return unknownColour;
  const kmh = (dmps / 10) * 3.6;
  return style(`speed-${limits.findIndex((limit) => kmh <= limit)}`);
};

/** Runs of one colour within the pieces of the track; each run begins where the one before it ends. */
function runs(track: Track, by: By, colourOfZone: (zone: string) => string): GeoJSON.FeatureCollection {
  const found = new Map<string, Place[][]>();
  track.lines.forEach((line, piece) => {
    const first = track.begins[piece] as number;
    let run: Place[] = [];
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
  return collectionOf([...found].map(([colour, lines]) => (
    feature({ type: "MultiLineString", coordinates: lines.filter((one) => one.length > 1) }, { colour })
  )));
}

function choice(element: HTMLElement, take: (by: By) => void): void {
  const buttons = (["speed", "zone"] as const).map((by) => {
    const button = make("button", { type: "button", textContent: `Colour by ${by}`, ariaPressed: String(by === "speed") });
    button.addEventListener("click", () => {
      for (const one of buttons) one.ariaPressed = String(one === button);
      take(by);
    });
    return button;
  });
  element.prepend(make("p", { className: "choice" }, ...buttons));
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
  const numbers = new Map(fences.features.map(({ properties }) => [(properties as FenceProperties).id, (properties as FenceProperties).number]));
  const colourOfZone = (zone: string): string => zoneColour(numbers.get(zone) ?? 0);
  const speedText = (limit: number): string => (limit < Infinity ? `to ${limit} km/h` : `over ${limits[limits.length - 2]} km/h`);
  legendOf(element, [
    ...limits.map((limit, at): Entry => [`speed speed-${at}`, speedText(limit)]),
    ["speed speed-unknown", "unknown, or outside all zones"],
  ]);
  const map = await makeMap(element, [track.lines.flat()]);
  addFences(map, fences);
  const colour = colours();
  map.addSource("track", { type: "geojson", data: runs(track, "speed", colourOfZone) });
  const width = (more: number): ExpressionSpecification => ["interpolate", ["linear"], ["zoom"], 10, 1.6 + more, 13, 2.6 + more, 16, 5 + more];
  map.addLayer({ id: "track-casing", type: "line", source: "track", layout: round, paint: { "line-color": colour["selected-casing"], "line-width": width(2.6) } });
  map.addLayer({ id: "track", type: "line", source: "track", layout: round, paint: { "line-color": ["get", "colour"], "line-width": width(0) } });
  const last = places.longitude.length - 1;
  const ends = last < 0 ? [] : [0, last].map((at) => feature({ type: "Point", coordinates: placeAt(places, at) }, { name: at ? "end" : "start" }));
  map.addSource("ends", { type: "geojson", data: collectionOf(ends) });
  map.addLayer({ id: "ends", type: "circle", source: "ends", paint: { "circle-radius": 5, "circle-color": colour.selected, "circle-stroke-color": colour["selected-casing"], "circle-stroke-width": 2 } });
  map.addLayer({
    id: "end-name",
    type: "symbol",
    source: "ends",
    layout: { "text-field": ["get", "name"], "text-font": ["Noto Sans Medium"], "text-size": 11, "text-variable-anchor": ["left", "right"], "text-radial-offset": 0.9 },
    paint: { "text-color": colour.text, "text-halo-color": colour.halo, "text-halo-width": 1.4 },
  });
  choice(element, (by) => show(map, "track", runs(track, by, colourOfZone)));
  finish(element, map);
}
