// What lies under every map: the graticule, and the user's own lines or tiles in the street style.
import * as maplibregl from "maplibre-gl";
import { collectionOf, feature, show, type Colours } from "./map";

const width = (low: number, middle: number, high: number): maplibregl.ExpressionSpecification => [
  "interpolate",
  ["exponential", 1.6],
  ["zoom"],
  10,
  low,
  13,
  middle,
  16,
  high,
];

/** A main street: `class` main, or a large road of OpenStreetMap (`highway`) or of the usual tile schemas. */
const isMain: maplibregl.ExpressionSpecification = [
  "in",
  ["coalesce", ["get", "class"], ["get", "kind"], ["get", "highway"], ""],
  ["literal", ["main", "motorway", "trunk", "primary", "secondary", "highway", "major_road"]],
];

const waterLayers = ["water", "ocean"];
const streetLayers = ["roads", "streets", "transportation", "road"];

/** Streets: casings below all fills, so that crossings are open; main streets above side streets. */
function addStreets(map: maplibregl.Map, source: string, colour: Colours, layer?: string): void {
  const cap = { "line-cap": "round", "line-join": "round" } as const;
  const lines: [string, string, boolean, maplibregl.ExpressionSpecification][] = [
    ["side-casing", colour.casing, false, width(1.3, 3.5, 8)],
    ["main-casing", colour["main-casing"], true, width(2.2, 5.8, 15)],
    ["side", colour.street, false, width(0.7, 1.9, 6)],
    ["main", colour["main-street"], true, width(1.6, 4.2, 13)],
  ];
  for (const [name, line, main, lineWidth] of lines) {
    map.addLayer({
      id: `basemap-${layer ?? "street"}-${name}`,
      type: "line",
      source,
      ...(layer === undefined ? {} : { "source-layer": layer }),
      filter: ["all", ["==", ["geometry-type"], "LineString"], main ? isMain : ["!", isMain]],
      layout: cap,
      paint: { "line-color": line, "line-width": lineWidth },
    });
  }
}

async function addArchive(map: maplibregl.Map, address: string, colour: Colours): Promise<void> {
  const { PMTiles, Protocol, TileType } = await import("pmtiles");
  const protocol = new Protocol();
  const archive = new PMTiles(address);
  protocol.add(archive);
  // adding it again for a second map replaces it
  maplibregl.addProtocol("pmtiles", protocol.tile);
  const header = await archive.getHeader();
  const bounds: [number, number, number, number] = [header.minLon, header.minLat, header.maxLon, header.maxLat];
  const url = `pmtiles://${address}`;
  if (header.tileType !== TileType.Mvt) {
    map.addSource("basemap", { type: "raster", url, tileSize: 256, bounds });
    map.addLayer({ id: "basemap-raster", type: "raster", source: "basemap" });
    return;
  }
  map.addSource("basemap", { type: "vector", url, bounds });
  const metadata = (await archive.getMetadata()) as { vector_layers?: { id: string }[] };
  const layers = (metadata.vector_layers ?? []).map((one) => one.id);
  for (const id of layers.filter((one) => waterLayers.includes(one))) {
    map.addLayer({
      id: `basemap-${id}`,
      type: "fill",
      source: "basemap",
      "source-layer": id,
      filter: ["==", ["geometry-type"], "Polygon"],
      paint: { "fill-color": colour.sea },
    });
  }
  const streets = layers.filter((one) => streetLayers.includes(one));
  const others = layers.filter((one) => !waterLayers.includes(one));
  for (const id of streets.length ? streets : others) addStreets(map, "basemap", colour, id);
}

/** Who made the user's base map; empty if there is none. */
export const basemapCredit = (): string => document.body.dataset.basemapCredit ?? "";

/** Draws the user's base map, if the settings name one. A fault of it leaves the rest of the map as it is. */
export async function addBasemap(map: maplibregl.Map, colour: Colours): Promise<void> {
  const kind = document.body.dataset.basemap;
  if (!kind) return;
  const address = new URL("/basemap", location.href).href;
  if (kind === "pmtiles") return addArchive(map, address, colour);
  map.addSource("basemap", { type: "geojson", data: address, tolerance: 0.2 });
  addStreets(map, "basemap", colour);
}

// Degrees between two lines of the graticule, the finest first; labels need as many decimals as the step has.
const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30];

const decimals = (step: number): number => (step < 1 ? String(step).length - 2 : 0);

function degrees(value: number, step: number, letters: string): string {
  const side = value === 0 ? "" : value > 0 ? letters[0] : letters[1];
  return `${Math.abs(value).toFixed(decimals(step))}°${side}`;
}

function graticule(map: maplibregl.Map): GeoJSON.FeatureCollection {
  const bounds = map.getBounds();
  const [west, east] = [bounds.getWest(), bounds.getEast()];
  const [south, north] = [Math.max(bounds.getSouth(), -85), Math.min(bounds.getNorth(), 85)];
  const wide = map.getContainer().clientWidth / 150;
  const step = steps.find((one) => (east - west) / one <= Math.max(wide, 2)) ?? 30;
  const features: GeoJSON.Feature[] = [];
  const line = (coordinates: GeoJSON.Position[]): unknown => features.push(feature({ type: "LineString", coordinates }));
  const label = (text: string, anchor: string, coordinates: GeoJSON.Position): unknown =>
    features.push(feature({ type: "Point", coordinates }, { text, anchor }));
  for (let at = Math.ceil(west / step); at * step <= east; at += 1) {
    const longitude = at * step;
    const named = ((((longitude + 180) % 360) + 360) % 360) - 180;
    line([[longitude, south], [longitude, north]]);
    label(degrees(named, step, "EW"), "top", [longitude, north]);
  }
  for (let at = Math.ceil(south / step); at * step <= north; at += 1) {
    line([[west, at * step], [east, at * step]]);
    label(degrees(at * step, step, "NS"), "left", [west, at * step]);
  }
  return collectionOf(features);
}

/** Lines of longitude and latitude at round degrees, with their values at the top and the left edge of the map. */
export function addGraticule(map: maplibregl.Map, colour: Colours): void {
  map.addSource("graticule", { type: "geojson", data: graticule(map), maxzoom: 19, tolerance: 0 });
  map.addLayer({
    id: "graticule",
    type: "line",
    source: "graticule",
    filter: ["==", ["geometry-type"], "LineString"],
    paint: { "line-color": colour.graticule, "line-width": 1 },
  });
  map.on("moveend", () => show(map, "graticule", graticule(map)));
}

/** The values of the graticule; above streets and below all that a page draws. */
export function addGraticuleLabels(map: maplibregl.Map, colour: Colours): void {
  map.addLayer({
    id: "graticule-label",
    type: "symbol",
    source: "graticule",
    filter: ["has", "text"],
    layout: {
      "text-field": ["get", "text"],
      "text-font": ["Noto Sans"],
      "text-size": 10,
      "text-anchor": ["get", "anchor"] as unknown as maplibregl.ExpressionSpecification,
      "text-offset": [0.3, 0.3],
      "text-padding": 1,
    },
    paint: { "text-color": colour["graticule-text"], "text-halo-color": colour.land, "text-halo-width": 1.2 },
  });
}
