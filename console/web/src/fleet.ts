// The fleet's map: all devices are one layer of the graphics card, names and headings of a few are symbols.
import { type Map, Popup } from "maplibre-gl";
import { linesOf, int32, placeAt, placesOf } from "./columns";
import { fixesOf, follow, type Update } from "./live";
import { addFences, addTracks, collectionOf, colours, type Entry, feature, finish, legendOf, makeMap, nearest, show, wedge } from "./map";
import { mercatorX, mercatorY, MoverLayer, type State, states, verticesOf, type Vertices, writeVertex } from "./movers";
import { clockOf, make, selectRow } from "./page";

type Fixes = ReturnType<typeof fixesOf>;

const labelZoom = 11.4;
/** More labels than these are drawn slowly, and cover each other. */
const mostLabels = 2000;

interface Fleet extends Vertices {
  ids: string[];
  names: string[];
  tenants: string[];
  at: globalThis.Map<string, number>;
  fixes: Fixes;
  now: number;
  silentS: number;
  movingDmps: number;
  /** The text of a time in milliseconds. */
  text: (ms: number) => string;
}

function fleetOf(data: Record<string, unknown>): Fleet {
  const pairs = data["ids"] as [string, string][];
  const ids = pairs.map(([tenant, device]) => `${tenant}/${device}`);
  return {
    ids,
    names: pairs.map(([, device]) => device),
    tenants: pairs.map(([tenant]) => tenant),
    at: new globalThis.Map(ids.map((id, at) => [id, at])),
    fixes: fixesOf(data),
    count: pairs.length,
    vertices: verticesOf(pairs.length),
    now: data["now"] as number,
    silentS: data["silent_s"] as number,
    movingDmps: (data["moving_mps"] as number) * 10,
    text: clockOf(data["zone"] as string),
  };
}

const ageOf = (fleet: Fleet, at: number): number => fleet.now / 1000 - (fleet.fixes.time[at] as number);

function stateOf(fleet: Fleet, at: number): State {
  if (ageOf(fleet, at) > fleet.silentS) return "silent";
  const speed = fleet.fixes.speed[at] as number;
  // a clock far ahead of ours says nothing of now
  if (speed < 0 || ageOf(fleet, at) < -60) return "unknown";
  return speed > fleet.movingDmps ? "driving" : "parked";
}

type Counts = Record<State, number>;

/** Writes what the layer draws, and counts the devices in each state. */
function arrange(fleet: Fleet): Counts {
  const counts: Counts = { driving: 0, parked: 0, silent: 0, unknown: 0 };
  for (let at = 0; at < fleet.count; at += 1) {
    const state = stateOf(fleet, at);
    counts[state] += 1;
    const place: [number, number] = [mercatorX(fleet.fixes.longitude[at] as number), mercatorY(fleet.fixes.latitude[at] as number)];
    writeVertex(fleet.vertices, at, states.indexOf(state), place);
  }
  return counts;
}

/** A point for each device that has a label; a driving one has a wedge in its direction too. */
function labels(fleet: Fleet): GeoJSON.FeatureCollection {
  if (fleet.count > mostLabels) return collectionOf([]);
  const tenants = new Set(fleet.tenants).size;
  return collectionOf(fleet.names.map((name, at) => {
    const heading = stateOf(fleet, at) === "driving" ? (fleet.fixes.heading[at] as number) : -1;
    const tenant = tenants > 1 ? ` ${fleet.tenants[at]}` : "";
    return feature({ type: "Point", coordinates: placeAt(fleet.fixes, at) }, { name, tenant, heading });
  }));
}

function addDevices(map: Map, fleet: Fleet): MoverLayer {
  const colour = colours();
  const devices = new MoverLayer(fleet);
  map.addSource("labels", { type: "geojson", data: labels(fleet) });
  map.addImage("wedge", wedge(colour.driving, colour.circle));
  map.addLayer(devices);
  map.addLayer({
    id: "heading",
    type: "symbol",
    source: "labels",
    minzoom: 10,
    filter: [">=", ["get", "heading"], 0],
    layout: {
      "icon-image": "wedge",
      "icon-size": 0.62,
      "icon-rotate": ["get", "heading"],
      "icon-rotation-alignment": "map",
      "icon-allow-overlap": true,
      "icon-ignore-placement": true,
    },
  });
  map.addLayer({
    id: "device-name",
    type: "symbol",
    source: "labels",
    minzoom: labelZoom,
    layout: {
      "text-field": ["format", ["get", "name"], {}, ["get", "tenant"], { "font-scale": 0.9, "text-color": colour.ring }],
      "text-font": ["Noto Sans Medium"],
      "text-size": 11,
      "text-variable-anchor": ["left", "right", "top", "bottom"],
      "text-radial-offset": 1.15,
    },
    paint: { "text-color": colour.text, "text-halo-color": colour.halo, "text-halo-width": 1.4 },
  });
  return devices;
}

/** Two units at most, as the server writes it. */
function durationText(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const units: [number, string, number, string][] = [
    [86400, "d", 3600, "h"],
    [3600, "h", 60, "min"],
    [60, "min", 1, "s"],
  ];
  for (const [size, name, smaller, smallerName] of units) {
    if (whole < size) continue;
    const rest = Math.floor((whole % size) / smaller);
    return `${Math.floor(whole / size)} ${name}${rest ? ` ${rest} ${smallerName}` : ""}`;
  }
  return `${whole} s`;
}

/** A cell's text is replaced in its place: focus, selection and scroll stay. */
function write(cell: Element | null, text: string, kind: "unknown" | State | ""): void {
  if (!cell) return;
  const inner = cell.firstElementChild ?? cell.appendChild(document.createElement("span"));
  const name = kind === "unknown" && text === "unknown" ? "unknown" : kind ? `state state-${kind}` : "";
  if (cell.textContent?.trim() !== text) {
    cell.textContent = "";
    inner.textContent = text;
    cell.append(inner);
  }
  if (inner.className !== name) inner.className = name;
}

/** The rows of the table. Only those in view are written: a change of a cell lays out its table again. */
class Rows {
  private readonly seen = new globalThis.Map<string, (key: string) => Element | null>();

  constructor() {
    const observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const id = (target as HTMLElement).dataset["id"] ?? "";
        if (isIntersecting) this.seen.set(id, (key) => target.querySelector(`td[data-key="${key}"]`));
        else this.seen.delete(id);
      }
    });
    for (const row of document.querySelectorAll("#devices tbody tr[data-id]")) observer.observe(row);
  }

  update(fleet: Fleet): void {
    for (const [id, cell] of this.seen) {
      const at = fleet.at.get(id);
      if (at === undefined) continue;
      const is = stateOf(fleet, at);
      const dmps = fleet.fixes.speed[at] as number;
      const known = is !== "silent" && dmps >= 0;
      write(cell("state"), is, is);
      write(cell("age_s"), durationText(ageOf(fleet, at)), "");
      write(cell("speed_mps"), known ? `${Math.round((dmps / 10) * 3.6)} km/h` : "unknown", known ? "" : "unknown");
      write(cell("time"), fleet.text((fleet.fixes.time[at] as number) * 1000), "");
    }
  }
}

/** Takes the newer fixes of an update into the fleet. */
function merge(fleet: Fleet, ids: string[], update: Update): void {
  for (let from = 0; from < update.time.length; from += 1) {
    const at = fleet.at.get(ids[from] ?? "");
    if (at === undefined || (update.time[from] as number) <= (fleet.fixes.time[at] as number)) continue;
    for (const name of ["longitude", "latitude", "time", "speed", "heading"] as const) {
      fleet.fixes[name][at] = update[name][from] as number;
    }
  }
  fleet.now = update.now;
}

function sourceText(update: Update): string {
  const since = update.heardAt === null ? "Nothing new came yet." : `The last new fix came ${durationText((update.now - update.heardAt) / 1000)} ago.`;
  if (update.source === "topics") return `Live: the topics of ${update.cluster}. ${since}`;
  const why = update.problem ? ` The topics of ${update.cluster} are not read: ${update.problem.slice(0, 120)}.` : "";
  return `Live: new commits of the lake. ${since}${why}`;
}

export async function draw(element: HTMLElement, data: Record<string, unknown>): Promise<void> {
  const fleet = fleetOf(data);
  const textContent = data["live"] ? "Live: connecting." : "A time of the past: nothing moves here.";
  const said = element.appendChild(make("p", { className: "live", textContent }));
  const entries = (counts: Counts) => states.map((state): Entry => [`state state-${state}`, `${state} ${counts[state]}`]);
  const legend = legendOf(element, entries(arrange(fleet)));
  const map = await makeMap(element, fleet.ids.map((_, at) => [placeAt(fleet.fixes, at)]));
  const tracks = data["tracks"] as Record<string, unknown>;
  addTracks(map, linesOf(placesOf(tracks), int32(tracks["begins"])));
  addFences(map, data["fences"] as GeoJSON.FeatureCollection);
  const layer = addDevices(map, fleet);
  const rows = new Rows();
  const popup = new Popup({ maxWidth: "none" });
  map.on("click", ({ point }) => {
    const at = nearest(map, fleet.count, (one) => placeAt(fleet.fixes, one), point, 12);
    selectRow(fleet.ids[at]);
    if (at < 0) return;
    const [tenant, name] = [fleet.tenants[at] as string, fleet.names[at] as string];
    const link = make("a", { href: `/device/${encodeURIComponent(tenant)}/${encodeURIComponent(name)}`, textContent: `${name} of ${tenant}` });
    const told = make("div", { textContent: `${stateOf(fleet, at)}, last fix ${durationText(ageOf(fleet, at))} ago` });
    popup.setLngLat(placeAt(fleet.fixes, at)).setDOMContent(make("div", {}, link, told)).addTo(map);
  });
  document.querySelector("#devices tbody")?.addEventListener("click", (event) => {
    const id = (event.target as Element).closest("tr")?.dataset["id"] ?? "";
    const at = fleet.at.get(id);
    if (at === undefined) return;
    selectRow(id);
    map.jumpTo({ center: placeAt(fleet.fixes, at), zoom: Math.max(map.getZoom(), 12) });
  });
  finish(element, map);
  if (!data["live"]) return;
  const withoutFix = data["without_fix"] as Partial<Counts>;
  const loaded = `Today, records, alerts and registry are of ${fleet.text(fleet.now)}.`;
  follow(
    data["live"] as string,
    (ids, update) => {
      merge(fleet, ids, update);
      rows.update(fleet);
      said.textContent = `${sourceText(update)} ${loaded}`;
      const counts = arrange(fleet);
      legend(entries(counts));
      for (const state of states) {
        const fact = document.querySelector(`.facts dd[data-key="${state}"]`);
        const text = (counts[state] + (withoutFix[state] ?? 0)).toLocaleString("en");
        if (fact && fact.textContent !== text) fact.textContent = text;
      }
      layer.stale = true;
      map.triggerRepaint();
      if (map.getZoom() >= 10 && fleet.count <= mostLabels) show(map, "labels", labels(fleet));
      element.dataset.updates = String(Number(element.dataset.updates ?? "0") + 1);
    },
    () => {
      said.textContent = `Live: no update since ${fleet.text(fleet.now)}. Ages and states are of then. Reload the page if this stays.`;
    },
  );
}
