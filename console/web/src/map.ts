// The base of every map: land, graticule, the user's own lines, and colours for light and dark.
import * as maplibregl from "maplibre-gl";
import "maplibre-gl/dist/maplibre-gl.css";
import workerUrl from "maplibre-gl/dist/maplibre-gl-worker.mjs?worker&url";
import landUrl from "world-atlas/land-110m.json?url";
import detailedLandUrl from "world-atlas/land-50m.json?url";
import { feature as featureOf } from "topojson-client";
import type { Topology } from "topojson-specification";
import { addBasemap, addGraticule, addGraticuleLabels, basemapCredit } from "./basemap";
import { onward, type Place } from "./columns";
import { make, style } from "./page";

maplibregl.setWorkerUrl(workerUrl);

export type Box = [west: number, south: number, east: number, north: number];

const names = [
  ...(["sea", "land", "coast", "graticule", "graticule-text", "text", "halo", "street", "main-street", "casing", "main-casing"] as const),
  ...(["track", "selected", "selected-casing", "driving", "parked", "ring", "silent", "circle", "good", "bad"] as const),
];

export type Colours = Record<(typeof names)[number], string>;

export const colours = (): Colours => Object.fromEntries(names.map((name) => [name, style(name)])) as Colours;
const zones = 5;
/** The colour of a zone, the same on every page: by its number. */
export const zoneColour = (number: number): string => style(`zone-${number % zones}`);

/** Makes rings planar: world-atlas has them on a sphere, where they pass the antimeridian and go round the pole. */
export function planar(collection: GeoJSON.FeatureCollection): GeoJSON.FeatureCollection {
  const mended = (ring: GeoJSON.Position[], near?: number): Place[] => {
    const line: Place[] = [];
    for (const [longitude, latitude] of ring as Place[]) line.push([onward(longitude, line[line.length - 1]?.[0] ?? near), latitude]);
    const [first, last] = [line[0] as Place, line[line.length - 1] as Place];
    if (first[0] === last[0]) return line;
    const pole = Math.sign(first[1]) * 85.06;
    return [...line, [last[0], pole], [first[0], pole], first];
  };
  const polygons = collection.features.flatMap(({ geometry }) => (
    geometry.type === "Polygon" ? [geometry.coordinates] : geometry.type === "MultiPolygon" ? geometry.coordinates : []
  ));
  return collectionOf(polygons.map(([first, ...holes]) => {
    const outer = mended(first as GeoJSON.Position[]);
    // a hole lies in its land, also if that went on beyond the antimeridian
    const [west, , east] = boxOf(outer) as Box;
    return feature({ type: "Polygon", coordinates: [outer, ...holes.map((one) => mended(one, (west + east) / 2))] });
  }));
}

async function land(url: string): Promise<GeoJSON.FeatureCollection> {
  const topology = (await (await fetch(url)).json()) as Topology;
  const object = topology.objects["land"];
  if (!object) throw new Error("the land has no object named land");
  const made = featureOf(topology, object) as GeoJSON.FeatureCollection | GeoJSON.Feature;
  return planar(made.type === "FeatureCollection" ? made : collectionOf([made]));
}

export const collectionOf = (features: GeoJSON.Feature[]): GeoJSON.FeatureCollection => ({ type: "FeatureCollection", features });
export const feature = (geometry: GeoJSON.Geometry, properties: GeoJSON.GeoJsonProperties = {}): GeoJSON.Feature => ({ type: "Feature", properties, geometry });

/** Replaces what a source of the map shows. */
export const show = (map: maplibregl.Map, source: string, data: GeoJSON.GeoJSON): void =>
  void (map.getSource(source) as maplibregl.GeoJSONSource | undefined)?.setData(data);

/** Adds lines with a source of their own. */
export function addLine(map: maplibregl.Map, id: string, data: GeoJSON.GeoJSON, paint: maplibregl.LineLayerSpecification["paint"]): void {
  map.addSource(id, { type: "geojson", data });
  const layout = paint?.["line-dasharray"] ? {} : round;
  map.addLayer({ id, type: "line", source: id, layout, paint });
}
export const round = { "line-cap": "round", "line-join": "round" } as const;

const fit = { padding: 40, maxZoom: 15 };

/**
 * An empty map in the page's colours, which shows the region with the most groups of places; a button shows each other
 * one, which would be a dot an ocean away. The camera moves only when the user moves it.
 */
export async function makeMap(element: HTMLElement, groups: Place[][]): Promise<maplibregl.Map> {
  const regions = regionsOf(groups);
  const [first] = regions;
  const buttons = element.appendChild(make("p", { className: "choice" }));
  const canvas = element.appendChild(make("div", { className: "map" }));
  const colour = colours();
  const map = new maplibregl.Map({
    container: canvas,
    style: {
      version: 8,
      sources: {},
      layers: [{ id: "sea", type: "background", paint: { "background-color": colour.sea } }],
    },
    attributionControl: false,
    maxZoom: 19,
    ...(first ? { bounds: first.box, fitBoundsOptions: fit } : { center: [10, 30], zoom: 1 }),
  });
  const views: [string, Box][] = regions.slice(0, 6).map(({ box, count }) => [`${count} near ${roundPlace(box)}`, box]);
  if (views.length > 1) views.push(["All", boxOf(regions.flatMap(({ box }) => [[box[0], box[1]], [box[2], box[3]]] as Place[])) as Box]);
  for (const [textContent, box] of views.length > 1 ? views : []) {
    const button = buttons.appendChild(make("button", { type: "button", textContent }));
    button.addEventListener("click", () => map.fitBounds(box, { ...fit, animate: false }));
  }
  map.addControl(new maplibregl.NavigationControl({ showCompass: false }), "top-right");
  map.addControl(new maplibregl.ScaleControl({ unit: "metric" }), "bottom-left");
  const credits = ["Land: Natural Earth", basemapCredit()].filter((one) => one);
  // MapLibre takes credits for markup
  map.addControl(new maplibregl.AttributionControl({ compact: true, customAttribution: credits.map((text) => make("span", { textContent: text }).innerHTML) }));
  map.on("error", (event) => {
    console.error("map error", event.error);
    element.dataset.error = String(event.error);
  });
  await new Promise<void>((resolve) => map.once("load", () => resolve()));
  if (canvas.clientWidth < 500) canvas.querySelector(".maplibregl-ctrl-attrib")?.classList.remove("maplibregl-compact-show");
  map.addSource("land", { type: "geojson", data: await land(landUrl) });
  map.addLayer({ id: "land", type: "fill", source: "land", paint: { "fill-color": colour.land } });
  map.addLayer({ id: "coast", type: "line", source: "land", paint: { "line-color": colour.coast, "line-width": 0.8 } });
  void land(detailedLandUrl).then((detailed) => show(map, "land", detailed));
  addGraticule(map, colour);
  await addBasemap(map, colour).catch((error: unknown) => map.fire(new maplibregl.ErrorEvent(error as Error)));
  addGraticuleLabels(map, colour);
  return map;
}

const roundPlace = ([west, south, east, north]: Box): string => {
  const [longitude, latitude] = [Math.round((west + east) / 2), Math.round((south + north) / 2)];
  return `${Math.abs(latitude)}°${latitude < 0 ? "S" : "N"} ${Math.abs(longitude)}°${longitude < 0 ? "W" : "E"}`;
};

/** The regions of groups of places, the one with the most groups first: groups in neighbouring squares of 2° are one. */
function regionsOf(groups: Place[][]): { box: Box; count: number }[] {
  const squares = new globalThis.Map<string, Place[][]>();
  for (const group of groups) {
    const [first] = group;
    if (!first) continue;
    const key = `${Math.floor(first[0] / 2)},${Math.floor(first[1] / 2)}`;
    const square = squares.get(key);
    if (square) square.push(group);
    else squares.set(key, [group]);
  }
  const regions: Place[][][] = [];
  while (squares.size) {
    const region: Place[][] = [];
    const keys = [squares.keys().next().value as string];
    for (let key = keys.pop(); key !== undefined; key = keys.pop()) {
      const found = squares.get(key);
      if (!found) continue;
      squares.delete(key);
      for (const one of found) region.push(one);
      const [x, y] = key.split(",").map(Number) as [number, number];
      for (const east of [-1, 0, 1]) for (const north of [-1, 0, 1]) keys.push(`${x + east},${y + north}`);
    }
    regions.push(region);
  }
  regions.sort((one, other) => other.length - one.length);
  return regions.map((region) => ({ box: boxOf(region.flat()) as Box, count: region.length }));
}

/** Says that the picture is there once it is, and gives tests what it is made of. */
export function finish(element: HTMLElement, map: maplibregl.Map, more: object = {}): void {
  map.once("idle", () => {
    element.dataset.drawn = "true";
  });
  Object.assign(element, { waybillMap: map, ...more });
}

/** The nearest of some things to a place on the screen, at most so many pixels away; -1: none. `place` null: not drawn. */
export function nearest(map: maplibregl.Map, count: number, place: (at: number) => Place | null, to: maplibregl.Point, within: number): number {
  let [best, least] = [-1, within ** 2];
  for (let at = 0; at < count; at += 1) {
    const there = place(at);
    const screen = there && map.project(there);
    const squared = screen ? (screen.x - to.x) ** 2 + (screen.y - to.y) ** 2 : Infinity;
    if (squared < least) [best, least] = [at, squared];
  }
  return best;
}

/** The smallest box of places, or null; 0°/0° never comes here, the server leaves it out. */
export function boxOf(places: Iterable<readonly [longitude: number, latitude: number]>): Box | null {
  let box: Box | null = null;
  for (const [longitude, latitude] of places) {
    box = box
      ? [Math.min(box[0], longitude), Math.min(box[1], latitude), Math.max(box[2], longitude), Math.max(box[3], latitude)]
      : [longitude, latitude, longitude, latitude];
  }
  return box;
}

/** The places of a shape. */
export function* placesIn(geometry: GeoJSON.Geometry): Generator<Place> {
  if (geometry.type === "GeometryCollection") for (const one of geometry.geometries) yield* placesIn(one);
  else yield* within(geometry.coordinates);
}

function* within(coordinates: unknown): Generator<Place> {
  if (!Array.isArray(coordinates)) return;
  if (typeof coordinates[0] === "number") yield coordinates as Place;
  else for (const one of coordinates) yield* within(one);
}

export interface FenceProperties {
  id: string;
  name: string;
  gate: boolean;
  number: number;
}

/** The northernmost corner of a shape, for its name: the middle of a ring is in its hole. */
function northernmost(one: GeoJSON.Feature): GeoJSON.Feature {
  const coordinates = [...placesIn(one.geometry)].reduce((best, place) => (place[1] > best[1] ? place : best), [0, -90]);
  return feature({ type: "Point", coordinates }, one.properties);
}

/** Fences and gates: areas with their holes, and their names above them. */
export function addFences(map: maplibregl.Map, fences: GeoJSON.FeatureCollection): void {
  const coloured = collectionOf(fences.features.map((one) => (
    { ...one, properties: { ...one.properties, colour: zoneColour((one.properties as FenceProperties).number) } }
  )));
  map.addSource("fences", { type: "geojson", data: coloured });
  map.addLayer({
    id: "fence-fill",
    type: "fill",
    source: "fences",
    filter: ["!=", ["get", "gate"], true],
    paint: { "fill-color": ["get", "colour"], "fill-opacity": 0.12 },
  });
  map.addLayer({
    id: "fence-line",
    type: "line",
    source: "fences",
    paint: {
      "line-color": ["get", "colour"],
      "line-width": ["interpolate", ["linear"], ["zoom"], 9, 1, 12, 1.8, 15, 2.6],
    },
  });
  map.addSource("fence-names", { type: "geojson", data: collectionOf(coloured.features.map(northernmost)) });
  map.addLayer({
    id: "fence-name",
    type: "symbol",
    source: "fence-names",
    // farther away a city's names cover each other
    minzoom: 8,
    layout: {
      "text-field": ["get", "name"],
      "text-font": ["Noto Sans Bold"],
      "text-size": 13,
      "text-anchor": "bottom",
      "text-offset": [0, -0.2],
      "text-allow-overlap": true,
    },
    paint: { "text-color": ["get", "colour"], "text-halo-color": colours().halo, "text-halo-width": 1.6 },
  });
}

/** Tracks of a day at low opacity: they draw the roads that a fleet drives. */
export function addTracks(map: maplibregl.Map, lines: Place[][]): void {
  addLine(map, "tracks", feature({ type: "MultiLineString", coordinates: lines }), {
    "line-color": colours().track,
    "line-opacity": map.getSource("basemap") ? 0.13 : 0.22,
    "line-width": ["interpolate", ["linear"], ["zoom"], 10, 0.8, 13, 2, 16, 4],
  });
}

/** The tip of a wedge that points north, apart from the circle in its middle. */
export function wedge(fill: string, ring: string): ImageData {
  const context = make("canvas", { width: 64, height: 64 }).getContext("2d") as CanvasRenderingContext2D;
  const path = new Path2D("M32 1 L41 17 Q32 12 23 17 Z");
  Object.assign(context, { fillStyle: fill, strokeStyle: ring, lineWidth: 2 });
  context.fill(path);
  context.stroke(path);
  return context.getImageData(0, 0, 64, 64);
}

export type Entry = [className: string, text: string];

/** A legend below the map; zones have their names on the map. The result replaces the texts of entries. */
export function legendOf(element: HTMLElement, entries: Entry[]): (entries: Entry[]) => void {
  const items = entries.map(([className, textContent]) => make("li", { className, textContent }));
  element.append(make("ul", { className: "legend" }, ...items));
  return (fresh) => fresh.forEach(([, text], at) => {
    const item = items[at];
    if (item && item.textContent !== text) item.textContent = text;
  });
}
