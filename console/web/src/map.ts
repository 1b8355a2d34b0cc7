// The base of every map: land, graticule, the user's own lines, and colours for light and dark.
import * as maplibregl from "maplibre-gl";
import "maplibre-gl/dist/maplibre-gl.css";
import workerUrl from "maplibre-gl/dist/maplibre-gl-worker.mjs?worker&url";
import landUrl from "world-atlas/land-110m.json?url";
import detailedLandUrl from "world-atlas/land-50m.json?url";
import { feature } from "topojson-client";
import type { Topology } from "topojson-specification";
import { addBasemap, addGraticule, addGraticuleLabels, basemapCredit } from "./basemap";

maplibregl.setWorkerUrl(workerUrl);

export type Box = [west: number, south: number, east: number, north: number];

export interface Colours {
  sea: string;
  land: string;
  coast: string;
  graticule: string;
  graticuleText: string;
  text: string;
  halo: string;
  street: string;
  mainStreet: string;
  casing: string;
  mainCasing: string;
  track: string;
  selected: string;
  selectedCasing: string;
  driving: string;
  parked: string;
  ring: string;
  silent: string;
  circle: string;
}

const light: Colours = {
  sea: "#dfe7ee",
  land: "#f6f5f1",
  coast: "#b9c4cf",
  graticule: "#dcdcd6",
  graticuleText: "#6f7780",
  text: "#1f2933",
  halo: "#ffffff",
  street: "#ffffff",
  mainStreet: "#ffffff",
  casing: "#dcdad2",
  mainCasing: "#cfccc2",
  track: "#1d4ed8",
  selected: "#0f172a",
  selectedCasing: "#ffffff",
  driving: "#1d4ed8",
  parked: "#ffffff",
  ring: "#56616d",
  silent: "#b45309",
  circle: "#ffffff",
};

const dark: Colours = {
  sea: "#0b121b",
  land: "#131c28",
  coast: "#33445a",
  graticule: "#212d3d",
  graticuleText: "#8494a8",
  text: "#e6edf3",
  halo: "#0b121b",
  street: "#2b3a4e",
  mainStreet: "#3a4c64",
  casing: "#0f1722",
  mainCasing: "#0f1722",
  track: "#6cb0ff",
  selected: "#ffd479",
  selectedCasing: "#0b121b",
  driving: "#6cb0ff",
  parked: "#131c28",
  ring: "#a9b4c0",
  silent: "#f5b041",
  circle: "#0b121b",
};

const zones = ["#7c3aed", "#0f766e", "#c2740c", "#db2777", "#4d7c0f"];
const darkZones = ["#c4a1ff", "#4fd1c5", "#f5b041", "#ff8fb3", "#9ccc65"];

export const isDark = (): boolean => matchMedia("(prefers-color-scheme: dark)").matches;
export const colours = (): Colours => (isDark() ? dark : light);
/** The colour of a zone, the same on every page: by the order of the zones' ids. */
export const zoneColour = (at: number): string => (isDark() ? darkZones : zones)[at % zones.length] as string;

/** Makes rings planar: world-atlas has them on a sphere, where they pass the antimeridian and go round the pole. */
export function planar(collection: GeoJSON.FeatureCollection): GeoJSON.FeatureCollection {
  const mended = (ring: GeoJSON.Position[]): GeoJSON.Position[] => {
    let shift = 0;
    const line = ring.map((place, at) => {
      const before = ring[at - 1];
      if (before) {
        const step = (place[0] as number) - (before[0] as number);
        if (Math.abs(step) > 180) shift -= Math.sign(step) * 360;
      }
      return [(place[0] as number) + shift, place[1] as number];
    });
    const first = line[0] as GeoJSON.Position;
    const last = line[line.length - 1] as GeoJSON.Position;
    if (first[0] === last[0]) return line;
    const pole = Math.sign(first[1] as number) * 85.06;
    return [...line, [last[0] as number, pole], [first[0] as number, pole], first];
  };
  const features = collection.features.map((one) => {
    const geometry = one.geometry;
    if (geometry.type === "Polygon") return { ...one, geometry: { ...geometry, coordinates: geometry.coordinates.map(mended) } };
    if (geometry.type === "MultiPolygon") {
      const coordinates = geometry.coordinates.map((polygon) => polygon.map(mended));
      return { ...one, geometry: { ...geometry, coordinates } };
    }
    return one;
  });
  return { ...collection, features };
}

async function land(url: string): Promise<GeoJSON.FeatureCollection> {
  const topology = (await (await fetch(url)).json()) as Topology;
  const object = topology.objects["land"];
  if (!object) throw new Error("the land has no object named land");
  const made = feature(topology, object) as GeoJSON.FeatureCollection | GeoJSON.Feature;
  return planar(made.type === "FeatureCollection" ? made : { type: "FeatureCollection", features: [made] });
}

/** Text as HTML: MapLibre takes credits for markup. */
function escaped(text: string): string {
  const element = document.createElement("span");
  element.textContent = text;
  return element.innerHTML;
}

/** An empty map in the page's colours, which shows a box; the camera moves only when the user moves it. */
export async function makeMap(element: HTMLElement, box: Box | null): Promise<maplibregl.Map> {
  const canvas = document.createElement("div");
  canvas.className = "map";
  element.append(canvas);
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
    ...(box ? { bounds: box, fitBoundsOptions: { padding: 40, maxZoom: 15 } } : { center: [10, 30], zoom: 1 }),
  });
  map.addControl(new maplibregl.NavigationControl({ showCompass: false }), "top-right");
  map.addControl(new maplibregl.ScaleControl({ unit: "metric" }), "bottom-left");
  const credits = ["Land: Natural Earth", basemapCredit()].filter((one) => one);
  map.addControl(new maplibregl.AttributionControl({ compact: true, customAttribution: credits.map(escaped) }));
  map.on("error", (event) => {
    console.error("map error", event.error);
    element.dataset.error = String(event.error);
  });
  await new Promise<void>((resolve) => map.once("load", () => resolve()));
  map.addSource("land", { type: "geojson", data: await land(landUrl) });
  map.addLayer({ id: "land", type: "fill", source: "land", paint: { "fill-color": colour.land } });
  map.addLayer({ id: "coast", type: "line", source: "land", paint: { "line-color": colour.coast, "line-width": 0.8 } });
  void land(detailedLandUrl).then((detailed) => (map.getSource("land") as maplibregl.GeoJSONSource | undefined)?.setData(detailed));
  addGraticule(map, colour);
  await addBasemap(map, colour).catch((error: unknown) => map.fire(new maplibregl.ErrorEvent(error as Error)));
  addGraticuleLabels(map, colour);
  return map;
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

export interface FenceProperties {
  id: string;
  name: string;
  gate: boolean;
}

/** The northernmost corner of a shape, for its name: the middle of a ring is in its hole. */
function northernmost(one: GeoJSON.Feature): GeoJSON.Feature {
  let best: GeoJSON.Position = [0, -90];
  const visit = (coordinates: unknown): void => {
    if (!Array.isArray(coordinates)) return;
    if (typeof coordinates[0] !== "number") return coordinates.forEach(visit);
    if ((coordinates[1] as number) > (best[1] as number)) best = coordinates as GeoJSON.Position;
  };
  if ("coordinates" in one.geometry) visit(one.geometry.coordinates);
  return { ...one, geometry: { type: "Point", coordinates: best } };
}

/** Fences and gates: areas with their holes, and their names above them. */
export function addFences(map: maplibregl.Map, fences: GeoJSON.FeatureCollection): void {
  const ids = [...new Set(fences.features.map((one) => (one.properties as FenceProperties).id))].sort();
  const coloured: GeoJSON.FeatureCollection = {
    type: "FeatureCollection",
    features: fences.features.map((one) => ({
      ...one,
      properties: { ...one.properties, colour: zoneColour(ids.indexOf((one.properties as FenceProperties).id)) },
    })),
  };
  map.addSource("fences", { type: "geojson", data: coloured });
  map.addLayer({
    id: "fence-fill",
    type: "fill",
    source: "fences",
    filter: ["!=", ["get", "gate"], true],
    paint: { "fill-color": ["get", "colour"], "fill-opacity": isDark() ? 0.13 : 0.11 },
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
  map.addSource("fence-names", { type: "geojson", data: { type: "FeatureCollection", features: coloured.features.map(northernmost) } });
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
export function addTracks(map: maplibregl.Map, lines: [number, number][][]): void {
  map.addSource("tracks", {
    type: "geojson",
    data: { type: "Feature", properties: {}, geometry: { type: "MultiLineString", coordinates: lines } },
  });
  map.addLayer({
    id: "tracks",
    type: "line",
    source: "tracks",
    layout: { "line-cap": "round", "line-join": "round" },
    paint: {
      "line-color": colours().track,
      "line-opacity": map.getSource("basemap") ? 0.13 : 0.22,
      "line-width": ["interpolate", ["linear"], ["zoom"], 10, 0.8, 13, 2, 16, 4],
    },
  });
}

function image(size: number, paint: (context: CanvasRenderingContext2D) => void): ImageData {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  paint(context);
  return context.getImageData(0, 0, size, size);
}

/** The tip of a wedge that points north, apart from the circle in its middle. */
export function wedge(fill: string, ring: string): ImageData {
  return image(64, (context) => {
    context.beginPath();
    context.moveTo(32, 1);
    context.lineTo(41, 17);
    context.quadraticCurveTo(32, 12, 23, 17);
    context.closePath();
    context.fillStyle = fill;
    context.strokeStyle = ring;
    context.lineWidth = 2;
    context.fill();
    context.stroke();
  });
}

/** A legend below the map: the given entries, then each zone in its colour. The result replaces the texts of entries. */
export function legendOf(
  element: HTMLElement,
  entries: [className: string, text: string][],
  fences: GeoJSON.FeatureCollection,
): (entries: [className: string, text: string][]) => void {
  const list = document.createElement("ul");
  list.className = "legend";
  const items = entries.map(([className, text]) => {
    const item = document.createElement("li");
    item.className = className;
    item.textContent = text;
    list.append(item);
    return item;
  });
  const names = new globalThis.Map(fences.features.map((one) => [(one.properties as FenceProperties).id, (one.properties as FenceProperties).name]));
  for (const [at, id] of [...names.keys()].sort().slice(0, 12).entries()) {
    const item = document.createElement("li");
    item.className = `zone zone-${at % zones.length}`;
    item.textContent = names.get(id) ?? id;
    list.append(item);
  }
  element.append(list);
  return (fresh) => fresh.forEach(([, text], at) => {
    const item = items[at];
    if (item && item.textContent !== text) item.textContent = text;
  });
}
