// Place and time: the area and the parts of the tracks inside it; a box or polygon is drawn with the mouse.
import type { Map, MapMouseEvent } from "maplibre-gl";
import { type Place, placeAt, placesOf } from "./columns";
import { addFences, addLine, boxOf, collectionOf, colours, feature, finish, legendOf, makeMap, placesIn, show, type Box } from "./map";
import { make } from "./page";

const empty = collectionOf([]);

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
    show(this.map, "drawing", empty);
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
    show(this.map, "drawing", feature({ type: "LineString", coordinates: ring }));
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

function addArea(map: Map, area: GeoJSON.Geometry | null, lines: Place[][]): void {
  const colour = colours();
  const border = area ? feature(area) : empty;
  map.addSource("area", { type: "geojson", data: border });
  map.addLayer({ id: "area", type: "fill", source: "area", paint: { "fill-color": colour.driving, "fill-opacity": 0.08 } });
  addLine(map, "area-line", border, { "line-color": colour.selected, "line-width": 2, "line-dasharray": [3, 2] });
  addLine(map, "inside", feature({ type: "MultiLineString", coordinates: lines }), { "line-color": colour.track, "line-width": 2.4, "line-opacity": 0.7 });
  addLine(map, "drawing", empty, { "line-color": colour.selected, "line-width": 2 });
}

/** A group of places for each device. */
function devicesOf(data: Record<string, unknown>): Place[][] {
  const places = placesOf(data);
  return Array.from(places.longitude, (_, at) => [placeAt(places, at)]);
}

export async function draw(element: HTMLElement, data: Record<string, unknown>): Promise<void> {
  const area = data["area"] as GeoJSON.Geometry | null;
  const tool = (textContent: string): HTMLButtonElement => make("button", { type: "button", textContent, ariaPressed: "false" });
  const [box, polygon] = [tool("Draw a box"), tool("Draw a polygon")];
  const hint = make("span", { className: "note", role: "status" });
  element.append(make("div", { className: "player" }, box, polygon, hint));
  const fences = data["fences"] as GeoJSON.FeatureCollection;
  const map = await makeMap(element, area ? [[...placesIn(area)]] : devicesOf(data));
  legendOf(element, [["difference-old", "area"], ["difference-new", "driven inside"]]);
  addFences(map, fences);
  addArea(map, area, data["lines"] as Place[][]);
  let drawing: Drawing | null = null;
  const start = (kind: "box" | "polygon", button: HTMLButtonElement, text: string): void => {
    drawing?.end();
    [button.ariaPressed, hint.textContent] = ["true", text];
    drawing = new Drawing(map, kind, () => {
      drawing = null;
      [button.ariaPressed, hint.textContent] = ["false", ""];
    });
  };
  box.addEventListener("click", () => start("box", box, "Click two opposite corners."));
  polygon.addEventListener("click", () => start("polygon", polygon, "Click the corners; a double click ends."));
  finish(element, map);
}
