// A span of time again. The time comes from the clock and the rate, never from counted frames.
import * as maplibregl from "maplibre-gl";
import { makeGraph, type Graph } from "./graph";
import { addFences, addTracks, type Entry, finish, legendOf, makeMap, nearest } from "./map";
import { MoverLayer, Movers, states, type Columns } from "./movers";
import { clockOf, make } from "./page";

interface Happening {
  id: string;
  t_ms: number;
  device: string;
}

const rates = [1, 10, 60, 120, 300, 600];
/** Software rendering needs a tenth of a second for a picture. */
const softwareFrameMs = 100;
const listEveryMs = 400;

/** The time of the picture: runs at a rate from a moment on, and stops at the end of the span. */
class Player {
  rate = 60;
  playing = false;
  private base = 0;
  private since = 0;

  constructor(private readonly length: number) {}

  now(): number {
    const passed = this.playing ? (performance.now() - this.since) * this.rate : 0;
    return Math.min(Math.max(this.base + passed, 0), this.length);
  }

  seek(ms: number): void {
    this.base = Math.min(Math.max(ms, 0), this.length);
    this.since = performance.now();
  }

  setRate(rate: number): void {
    this.seek(this.now());
    this.rate = rate;
  }

  play(playing: boolean): void {
    this.seek(playing && this.now() >= this.length ? 0 : this.now());
    this.playing = playing;
  }
}

function choice(values: [value: string, text: string][], ariaLabel: string): HTMLSelectElement {
  return make("select", { ariaLabel }, ...values.map(([value, textContent]) => make("option", { value, textContent })));
}

/** The rows of the table of events: those later than the time are hidden, and the newest is in view. */
class EventList {
  private readonly rows: HTMLElement[];
  private readonly scroll: HTMLElement | null;
  private shown = 0;

  constructor(private readonly events: Happening[]) {
    const table = document.querySelector("#events");
    this.rows = [...(table?.querySelectorAll<HTMLElement>("tbody tr") ?? [])];
    this.scroll = table?.closest<HTMLElement>(".scroll") ?? null;
    for (const row of this.rows) row.classList.add("later");
  }

  seek(ms: number): void {
    let shown = this.shown;
    while (shown < this.events.length && (this.events[shown] as Happening).t_ms <= ms) {
      this.rows[shown]?.classList.remove("later");
      shown += 1;
    }
    while (shown > 0 && (this.events[shown - 1] as Happening).t_ms > ms) {
      shown -= 1;
      this.rows[shown]?.classList.add("later");
    }
    if (shown === this.shown) return;
    this.shown = shown;
    if (this.scroll) this.scroll.scrollTop = this.scroll.scrollHeight;
  }
}

/** The mean speed of those that drive, in at most 240 parts of the span. */
function fleetSpeed(movers: Movers, columns: Columns): [number[], (number | null)[]] {
  const parts = 240;
  const length = columns.end_ms - columns.start_ms;
  const sum = new Float64Array(parts);
  const count = new Int32Array(parts);
  for (let at = 0; at < movers.t.length; at += 1) {
    const speed = movers.speed[at] as number;
    const part = Math.floor(((movers.t[at] as number) / length) * parts);
    if (speed <= 80 || part < 0 || part >= parts) continue;
    sum[part] = (sum[part] as number) + speed;
    count[part] = (count[part] as number) + 1;
  }
  const times = Array.from(sum, (_, part) => (columns.start_ms + ((part + 0.5) / parts) * length) / 1000);
  return [times, Array.from(sum, (value, part) => (count[part] ? (value / (count[part] as number)) * 0.036 : null))];
}

function deviceSpeed(movers: Movers, columns: Columns, device: number): [number[], (number | null)[]] {
  const times: number[] = [];
  const values: (number | null)[] = [];
  for (let at = movers.first[device] as number; at < (movers.first[device + 1] as number); at += 1) {
    const seconds = (columns.start_ms + (movers.t[at] as number)) / 1000;
    const before = times[times.length - 1];
    if (before !== undefined && seconds - before > columns.silent_s) {
      times.push(before + 1);
      values.push(null);
    }
    times.push(seconds);
    const speed = movers.speed[at] as number;
    values.push(speed < 0 ? null : speed * 0.036);
  }
  return [times, values];
}

function isSoftware(map: maplibregl.Map): boolean {
  const gl = map.getCanvas().getContext("webgl2");
  const info = gl?.getExtension("WEBGL_debug_renderer_info");
  return !!gl && !!info && String(gl.getParameter(info.UNMASKED_RENDERER_WEBGL)).includes("SwiftShader");
}

/** The number of devices in each state, as entries of the legend. */
function counted(movers: Movers): Entry[] {
  const counts = [0, 0, 0, 0];
  for (const state of movers.state) if (state >= 0) counts[state] = (counts[state] as number) + 1;
  return states.map((state, at) => [`state state-${state}`, `${state} ${counts[at]}`]);
}

function makeControls(element: HTMLElement, columns: Columns) {
  const button = (textContent: string, ariaLabel: string | null = null) => make("button", { type: "button", textContent, ariaLabel });
  const made = {
    back: button(`−${columns.step_s} s`, `−${columns.step_s} s, back`),
    play: button("Play"),
    forth: button(`+${columns.step_s} s`, `+${columns.step_s} s, on`),
    rate: choice(rates.map((one) => [String(one), `${one}×`]), "Rate"),
    time: make("output"),
    device: choice([["", "all that drive"], ...columns.devices.map((one): [string, string] => [one, one])], "Speed of"),
    slider: make("input", { type: "range", min: "0", max: String(columns.end_ms - columns.start_ms), step: "1000", value: "0", ariaLabel: "Time" }),
  };
  element.append(make("div", { className: "player", role: "group", ariaLabel: "Player" }, ...Object.values(made)));
  return made;
}

/** The label of the chosen device, which moves with it. */
class Label {
  private readonly marker: maplibregl.Marker;

  constructor(private readonly map: maplibregl.Map) {
    const element = make("div", { className: "mover-label" });
    this.marker = new maplibregl.Marker({ element, anchor: "left", offset: [10, 0] });
  }

  show(movers: Movers, device: number, now: number): void {
    const place = device < 0 ? null : movers.place(device, now);
    if (!place) {
      this.marker.remove();
      return;
    }
    this.marker.getElement().textContent = movers.devices[device] as string;
    this.marker.setLngLat(place).addTo(this.map);
  }
}

function keepInAddress(changed: Record<string, string>): void {
  const address = new URL(location.href);
  for (const [name, value] of Object.entries(changed)) {
    if (value) address.searchParams.set(name, value);
    else address.searchParams.delete(name);
  }
  history.replaceState(null, "", address);
}

export async function draw(element: HTMLElement, data: Record<string, unknown>): Promise<void> {
  const answer = await fetch(data["data"] as string, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error(`${answer.status} of ${answer.url}`);
  const columns = ((await answer.json()) as { island: Columns }).island;
  const zone = data["zone"] as string;
  const movers = new Movers(columns);
  const player = new Player(columns.end_ms - columns.start_ms);
  const list = new EventList(data["events"] as Happening[]);
  const text = clockOf(zone);
  const controls = makeControls(element, columns);
  const fences = data["fences"] as GeoJSON.FeatureCollection;
  const count = legendOf(element, counted(movers));
  // before the map, which is fitted to what they leave
  const range: [number, number] = [columns.start_ms / 1000, columns.end_ms / 1000];
  const graph: Graph = makeGraph(element, zone, "km/h", range, (seconds) => seek(seconds * 1000 - columns.start_ms));
  const map = await makeMap(element, movers.groups());
  addTracks(map, movers.lines());
  addFences(map, fences);
  const layer = new MoverLayer(movers);
  map.addLayer(layer, "fence-name");
  const label = new Label(map);
  const leastMs = isSoftware(map) ? softwareFrameMs : 0;
  let drawnAt = -Infinity;
  let listedAt = -Infinity;
  let chosen = -1;

  const show = (): void => {
    const now = player.now();
    if (movers.seek(now)) layer.stale = true;
    layer.now = now;
    label.show(movers, chosen, now);
    controls.slider.value = String(now);
    controls.slider.ariaValueText = text(columns.start_ms + now);
    controls.time.textContent = text(columns.start_ms + now);
    graph.mark((columns.start_ms + now) / 1000);
    map.triggerRepaint();
  };
  const showLists = (): void => {
    list.seek(player.now());
    count(counted(movers));
  };
  const remember = (): void => {
    const at = new Date(columns.start_ms + player.now()).toISOString();
    keepInAddress({ at, rate: String(player.rate), device: controls.device.value });
  };
  const frame = (clock: number): void => {
    if (!player.playing) return;
    if (clock - drawnAt >= leastMs) {
      drawnAt = clock;
      show();
    }
    if (clock - listedAt >= listEveryMs) {
      listedAt = clock;
      showLists();
    }
    if (player.now() >= columns.end_ms - columns.start_ms) setPlaying(false);
    else requestAnimationFrame(frame);
  };
  const setPlaying = (playing: boolean): void => {
    player.play(playing);
    controls.play.textContent = playing ? "Pause" : "Play";
    if (playing) requestAnimationFrame(frame);
    else {
      show();
      showLists();
      remember();
    }
  };
  const seek = (ms: number): void => {
    player.seek(ms);
    show();
    showLists();
    if (!player.playing) remember();
  };
  const choose = (device: number): void => {
    chosen = device;
    const [times, values] = device < 0 ? fleetSpeed(movers, columns) : deviceSpeed(movers, columns, device);
    graph.show(device < 0 ? "Mean speed of all that drive" : `Speed of ${movers.devices[device]}`, times, values);
    controls.device.value = device < 0 ? "" : (movers.devices[device] as string);
    show();
  };

  controls.play.addEventListener("click", () => setPlaying(!player.playing));
  controls.back.addEventListener("click", () => seek(player.now() - columns.step_s * 1000));
  controls.forth.addEventListener("click", () => seek(player.now() + columns.step_s * 1000));
  controls.slider.addEventListener("input", () => seek(Number(controls.slider.value)));
  controls.rate.addEventListener("change", () => {
    player.setRate(Number(controls.rate.value));
    remember();
  });
  controls.device.addEventListener("change", () => {
    choose(movers.devices.indexOf(controls.device.value));
    remember();
  });
  map.on("click", (event) => {
    const device = nearest(map, movers.count, (one) => movers.place(one, player.now()), event.point, 14);
    if (device >= 0) choose(device);
    remember();
  });

  const asked = new URL(location.href).searchParams;
  const at = Date.parse(asked.get("at") ?? "");
  const rate = rates.includes(Number(asked.get("rate"))) ? Number(asked.get("rate")) : 60;
  controls.rate.value = String(rate);
  player.setRate(rate);
  player.seek(Number.isNaN(at) ? 0 : at - columns.start_ms);
  choose(movers.devices.indexOf(asked.get("device") ?? ""));
  showLists();
  finish(element, map, { player, movers, layer });
  map.triggerRepaint();
}
