// The fleet's map: one MultiPoint for each state, which is drawn at a third of the cost of a point each.
import type { GeoJSONSource, Map } from "maplibre-gl";
import { addFences, boxOf, colours, makeMap } from "./map";

interface Device {
  id: string;
  state: string;
  latitude: number;
  longitude: number;
  heading_deg: number | null;
  age_s: number;
}

const states = ["unknown", "silent", "parked", "driving"];

function byState(devices: Device[]): GeoJSON.FeatureCollection {
  return {
    type: "FeatureCollection",
    features: states.map((state) => ({
      type: "Feature",
      properties: { state },
      geometry: {
        type: "MultiPoint",
        coordinates: devices.filter((one) => one.state === state).map((one) => [one.longitude, one.latitude]),
      },
    })),
  };
}

function addDevices(map: Map, devices: Device[]): void {
  const colour = colours();
  map.addSource("devices", { type: "geojson", data: byState(devices) });
  map.addLayer({
    id: "devices",
    type: "circle",
    source: "devices",
    paint: {
      "circle-radius": ["interpolate", ["linear"], ["zoom"], 4, 3, 10, 5, 13, 7],
      "circle-color": ["match", ["get", "state"], "driving", colour.driving, "silent", colour.silent, colour.parked],
      "circle-stroke-color": ["match", ["get", "state"], "parked", colour.ring, "unknown", colour.ring, colour.circle],
      "circle-stroke-width": 2,
    },
  });
}

function legend(element: HTMLElement, devices: Device[]): void {
  const list = document.createElement("ul");
  list.className = "legend";
  for (const state of [...states].reverse()) {
    const item = document.createElement("li");
    item.className = `state state-${state}`;
    item.textContent = `${state} ${devices.filter((one) => one.state === state).length}`;
    list.append(item);
  }
  element.append(list);
}

/** The device nearest to a place on the screen, at most 12 pixels away. */
export function nearest(map: Map, devices: Device[], x: number, y: number): Device | null {
  let best: Device | null = null;
  let least = 12 ** 2;
  for (const one of devices) {
    const at = map.project([one.longitude, one.latitude]);
    const squared = (at.x - x) ** 2 + (at.y - y) ** 2;
    if (squared < least) [best, least] = [one, squared];
  }
  return best;
}

export async function draw(element: HTMLElement, data: Record<string, unknown>): Promise<void> {
  const devices = data["devices"] as Device[];
  legend(element, devices);
  const map = await makeMap(element, boxOf(devices.map((one) => [one.longitude, one.latitude])));
  addFences(map, data["fences"] as GeoJSON.FeatureCollection);
  addDevices(map, devices);
  map.on("click", (event) => {
    const device = nearest(map, devices, event.point.x, event.point.y);
    const row = device && document.querySelector(`tr[data-id="${CSS.escape(device.id)}"]`);
    document.querySelector("tr.selected")?.classList.remove("selected");
    row?.classList.add("selected");
    row?.scrollIntoView({ block: "nearest" });
  });
  map.once("idle", () => {
    element.dataset.drawn = "true";
  });
  Object.assign(element, { waybillMap: map, source: map.getSource("devices") as GeoJSONSource });
}
