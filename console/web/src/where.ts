// Place and time: the area and the parts of the tracks inside it; a box or polygon is drawn with the mouse.
import type { GeoJSONSource, Map, MapMouseEvent } from "maplibre-gl";
import { addFences, boxOf, colours, makeMap, type Box } from "./map";

type Place = [longitude: number, latitude: number];

const empty: GeoJSON.FeatureCollection = { type: "FeatureCollection", features: [] };

function feature(geometry: GeoJSON.Geometry): GeoJSON.Feature {
  return { type: "Feature", properties: {}, geometry };
}

function* placesOf(coordinates: unknown): Generator<Place> {
  if (!Array.isArray(coordinates)) return;
  if (typeof coordinates[0] === "number") yield coordinates as Place;
  else for (const one of coordinates) yield* placesOf(one);
}

const rounded = (value: number): number => Math.round(value * 1e6) / 1e6;

/** Shows the page of another area; the window and the tenant stay. */
function ask(name: "box" | "area", value: string): void {
  const form = document.querySelector<HTMLFormElement>("form.filter");
  const field = form?.elements.namedItem(name);
  if (!form || !(field instanceof HTMLInputElement)) return;
  for (const other of ["box", "circle", "area"]) {
    const one = form.elements.namedItem(other);
    if (one instanceof HTMLInputElement) one.value = "";
  }
  field.value = value;
  form.requestSubmit();
}

/** A shape that is being drawn: the corners, and the place of the pointer. */
class Drawing {
  private corners: Place[] = [];

  constructor(
    private readonly map: Map,
    private readonly kind: "box" | "polygon",
    private readonly done: () => void,
  ) {
    map.getCanvas().style.cursor = "crosshair";
    map.doubleClickZoom.disable();
    map.on("click", this.click);
    map.on("mousemove", this.move);
    map.on("dblclick", this.finish);
    addEventListener("keydown", this.key);
  }

  end(): void {
    this.map.getCanvas().style.cursor = "";
    this.map.doubleClickZoom.enable();
    this.map.off("click", this.click);
    this.map.off("mousemove", this.move);
    this.map.off("dblclick", this.finish);
    removeEventListener("keydown", this.key);
    (this.map.getSource("drawing") as GeoJSONSource).setData(empty);
    this.done();
  }

  private readonly click = (event: MapMouseEvent): void => {
    const place: Place = [rounded(event.lngLat.lng), rounded(event.lngLat.lat)];
    const last = this.corners[this.corners.length - 1];
    // the second click of a double click is at the same place
    if (last && last[0] === place[0] && last[1] === place[1]) return;
    this.corners.push(place);
    if (this.kind === "box" && this.corners.length === 2) {
      const box = boxOf(this.corners) as Box;
      this.end();
      ask("box", box.join(","));
    }
  };

  private readonly move = (event: MapMouseEvent): void => {
    const first = this.corners[0];
    if (!first) return;
    const at: Place = [event.lngLat.lng, event.lngLat.lat];
    const ring: Place[] =
      this.kind === "box" ? [first, [at[0], first[1]], at, [first[0], at[1]], first] : [...this.corners, at, first];
    (this.map.getSource("drawing") as GeoJSONSource).setData(feature({ type: "LineString", coordinates: ring }));
  };

  private readonly finish = (event: MapMouseEvent): void => {
    event.preventDefault();
    if (this.kind !== "polygon" || this.corners.length < 3) return;
    const ring = [...this.corners, this.corners[0] as Place];
    this.end();
    ask("area", JSON.stringify({ type: "Polygon", coordinates: [ring] }));
  };

  private readonly key = (event: KeyboardEvent): void => {
    if (event.key === "Escape") this.end();
  };
}

function addTools(element: HTMLElement): { box: HTMLButtonElement; polygon: HTMLButtonElement; hint: HTMLElement } {
  const bar = document.createElement("div");
  bar.className = "player";
  const [box, polygon] = ["Draw a box", "Draw a polygon"].map((text) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-pressed", "false");
    bar.append(button);
    return button;
  }) as [HTMLButtonElement, HTMLButtonElement];
  const hint = document.createElement("span");
  hint.setAttribute("role", "status");
  hint.className = "note";
  bar.append(hint);
  element.append(bar);
  return { box, polygon, hint };
}

function addArea(map: Map, area: GeoJSON.Geometry | null, lines: Place[][]): void {
  const colour = colours();
  map.addSource("area", { type: "geojson", data: area ? feature(area) : empty });
  map.addSource("inside", { type: "geojson", data: feature({ type: "MultiLineString", coordinates: lines }) });
  map.addSource("drawing", { type: "geojson", data: empty });
  map.addLayer({ id: "area", type: "fill", source: "area", paint: { "fill-color": colour.driving, "fill-opacity": 0.08 } });
  map.addLayer({ id: "area-line", type: "line", source: "area", paint: { "line-color": colour.selected, "line-width": 2, "line-dasharray": [3, 2] } });
  const round = { "line-cap": "round", "line-join": "round" } as const;
  map.addLayer({ id: "inside", type: "line", source: "inside", layout: round, paint: { "line-color": colour.track, "line-width": 2.4, "line-opacity": 0.7 } });
  map.addLayer({ id: "drawing", type: "line", source: "drawing", paint: { "line-color": colour.selected, "line-width": 2 } });
}

export async function draw(element: HTMLElement, data: Record<string, unknown>): Promise<void> {
  const area = data["area"] as (GeoJSON.Geometry & { coordinates: unknown }) | null;
  const tools = addTools(element);
  const box = area ? boxOf(placesOf(area.coordinates)) : (data["around"] as Box | null);
  const map = await makeMap(element, box);
  addFences(map, data["fences"] as GeoJSON.FeatureCollection);
  addArea(map, area, data["lines"] as Place[][]);
  let drawing: Drawing | null = null;
  const start = (kind: "box" | "polygon", button: HTMLButtonElement, hint: string): void => {
    drawing?.end();
    button.setAttribute("aria-pressed", "true");
    tools.hint.textContent = hint;
    drawing = new Drawing(map, kind, () => {
      drawing = null;
      button.setAttribute("aria-pressed", "false");
      tools.hint.textContent = "";
    });
  };
  tools.box.addEventListener("click", () => start("box", tools.box, "Click two opposite corners."));
  tools.polygon.addEventListener("click", () => start("polygon", tools.polygon, "Click the corners; a double click ends."));
  map.once("idle", () => {
    element.dataset.drawn = "true";
  });
  Object.assign(element, { waybillMap: map });
}
