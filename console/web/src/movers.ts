// Vehicles on a map, each between two places: a layer that mixes both positions on the graphics card.
import type { CustomLayerInterface, CustomRenderMethodInput, Map } from "maplibre-gl";
import { int32, linesOf, onward, type Place, placeAt, type Places, placesOf } from "./columns";
import { colours } from "./map";

export interface Columns {
  start_ms: number;
  end_ms: number;
  step_s: number;
  silent_s: number;
  devices: string[];
  first: string;
  t_ms: string;
  longitude: string;
  latitude: string;
  speed: string;
  begins: string;
}

export const states = ["driving", "parked", "silent", "unknown"] as const;
export type State = (typeof states)[number];
/** Not seen yet: the device is not drawn. */
const absent = -1;
const movingCms = 80;
const mostPlaces = 100_000;

/** What the layer draws: for each device both positions (high and low parts), both times in seconds, and its state. */
export interface Vertices {
  readonly count: number;
  readonly vertices: Float32Array;
}

const stride = 11;
export const verticesOf = (count: number): Float32Array => new Float32Array(count * stride).fill(absent);

export const mercatorX = (units: number): number => units / 3.6e9 + 0.5;
export const mercatorY = (units: number): number =>
  0.5 - Math.log(Math.tan(Math.PI / 4 + (units * Math.PI) / 3.6e9)) / (2 * Math.PI);

/** Writes a device that is at (`x`, `y`) at `from`, in seconds, and at (`toX`, `toY`) at `to`. */
export function writeVertex(out: Float32Array, device: number, state: number, [x, y]: [number, number], [toX, toY] = [x, y], from = 0, to = 0): void {
  // the short way over the antimeridian
  const shift = toX - x > 0.5 ? -1 : x - toX > 0.5 ? 1 : 0;
  let at = device * stride;
  for (const [east, south] of [[x, y], [toX + shift, toY]] as const) {
    const [highX, highY] = [Math.fround(east), Math.fround(south)];
    out[at] = highX;
    out[at + 1] = highY;
    out[at + 2] = east - highX;
    out[at + 3] = south - highY;
    at += 4;
  }
  out[at] = from;
  out[at + 1] = to;
  out[at + 2] = state;
}

/** Where each device of a span is at a time. It knows the fixes around the time, and looks on from there. */
export class Movers implements Vertices {
  readonly count: number;
  readonly devices: string[];
  readonly first: Int32Array;
  readonly t: Int32Array;
  readonly speed: Int32Array;
  private readonly places: Places;
  private readonly begins: Int32Array;
  /** Of each device: the last fix at or before the time; one before its first fix: it was not seen yet. */
  readonly at: Int32Array;
  readonly state: Int8Array;
  private readonly linked: Uint8Array;
  private readonly silentMs: number;
  private readonly x: Float64Array;
  private readonly y: Float64Array;
  readonly vertices: Float32Array;

  constructor(columns: Columns) {
    this.devices = columns.devices;
    this.count = columns.devices.length;
    this.first = int32(columns.first);
    this.t = int32(columns.t_ms);
    this.places = placesOf(columns);
    this.begins = int32(columns.begins);
    this.speed = int32(columns.speed);
    this.silentMs = columns.silent_s * 1000;
    this.linked = new Uint8Array(this.t.length).fill(1);
    for (const at of this.begins) this.linked[at] = 0;
    this.x = Float64Array.from(this.places.longitude, mercatorX);
    this.y = Float64Array.from(this.places.latitude, mercatorY);
    this.at = new Int32Array(this.count);
    this.state = new Int8Array(this.count).fill(absent);
    this.vertices = verticesOf(this.count);
    for (let device = 0; device < this.count; device += 1) this.at[device] = (this.first[device] as number) - 1;
  }

  /** Goes to a time in milliseconds of the span; says whether a vertex changed. */
  seek(ms: number): boolean {
    let changed = false;
    for (let device = 0; device < this.count; device += 1) {
      const begin = this.first[device] as number;
      const end = this.first[device + 1] as number;
      let at = this.at[device] as number;
      if (at >= begin && (this.t[at] as number) > ms) at = this.last(begin, at, ms);
      else if (at + 1 < end && (this.t[at + 1] as number) <= ms) {
        at += 1;
        if (at + 1 < end && (this.t[at + 1] as number) <= ms) at = this.last(at, end, ms);
      }
      const state = this.stateAt(at, begin, end, ms);
      if (at === this.at[device] && state === this.state[device]) continue;
      this.at[device] = at;
      this.state[device] = state;
      const next = at + 1 < end && this.linked[at + 1] ? at + 1 : at;
      if (at < begin) writeVertex(this.vertices, device, absent, [0, 0]);
      else writeVertex(this.vertices, device, state, this.point(at), this.point(next), this.seconds(at), this.seconds(next));
      changed = true;
    }
    return changed;
  }

  /** The index of the last fix at or before a time, between two indexes; one before the first: there is none. */
  private last(low: number, high: number, ms: number): number {
    let from = low;
    let until = high;
    while (from < until) {
      const middle = (from + until) >> 1;
      if ((this.t[middle] as number) <= ms) from = middle + 1;
      else until = middle;
    }
    return from - 1;
  }

  private stateAt(at: number, begin: number, end: number, ms: number): number {
    if (at < begin) return absent;
    const goesOn = at + 1 < end && this.linked[at + 1] === 1;
    // in a gap nothing is known from its first moment on; after the last fix silence has to last first
    if (!goesOn && (at + 1 < end || ms - (this.t[at] as number) > this.silentMs)) return 2;
    const speed = this.speed[at] as number;
    if (speed < 0) return 3;
    return speed > movingCms ? 0 : 1;
  }

  private point(at: number): [x: number, y: number] {
    return [this.x[at] as number, this.y[at] as number];
  }

  private seconds(at: number): number {
    return (this.t[at] as number) / 1000;
  }

  /** Where a device is at the time that was sought, in degrees; null: it is not drawn. */
  place(device: number, ms: number): Place | null {
    const at = this.at[device] as number;
    if (this.state[device] === absent) return null;
    const from = placeAt(this.places, at);
    const next = at + 1;
    if (next >= (this.first[device + 1] as number) || !this.linked[next]) return from;
    const share = (ms - (this.t[at] as number)) / ((this.t[next] as number) - (this.t[at] as number));
    const to = placeAt(this.places, next);
    return [from[0] + share * (onward(to[0], from[0]) - from[0]), from[1] + share * (to[1] - from[1])];
  }

  /** The lines that were driven, without the gaps. */
  lines(): Place[][] {
    // they are the background: with many fixes a few give the same picture at a fraction of the memory
    const each = Math.ceil(this.t.length / mostPlaces);
    return linesOf(this.places, this.begins, each).filter((line) => line.length > 1);
  }

  /** The places of each device. */
  groups(): Place[][] {
    return this.devices.map((_, device) => {
      const begin = this.first[device] as number;
      return Array.from({ length: (this.first[device + 1] as number) - begin }, (_, at) => placeAt(this.places, begin + at));
    });
  }
}

const vertexShader = `#version 300 es
precision highp float;
in vec4 from; in vec4 to; in vec2 span; in float state;
uniform mat4 matrix; uniform vec4 centre; uniform float now; uniform float size;
flat out int kind;
void main() {
  float share = span.y > span.x ? clamp((now - span.x) / (span.y - span.x), 0.0, 1.0) : 0.0;
  // high and low parts apart: one float is a metre on the ground
  vec2 high = from.xy - centre.xy;
  high.x -= floor(high.x + 0.5);
  vec2 at = high + (from.zw - centre.zw) + share * ((to.xy - from.xy) + (to.zw - from.zw));
  gl_Position = state < 0.0 ? vec4(2.0, 2.0, 2.0, 1.0) : matrix * vec4(at, 0.0, 1.0);
  gl_PointSize = size;
  kind = int(state + 0.5);
}`;

const fragmentShader = `#version 300 es
precision highp float;
flat in int kind;
uniform vec3 fills[4]; uniform vec3 rings[4]; uniform float size;
out vec4 colour;
void main() {
  vec2 off = (gl_PointCoord - 0.5) * size;
  // silent is a square, every other state a disc
  float away = kind == 2 ? max(abs(off.x), abs(off.y)) + size * 0.06 : length(off);
  float edge = size * 0.5 - 1.0;
  float alpha = 1.0 - smoothstep(edge - 0.7, edge + 0.7, away);
  float ring = smoothstep(edge - 2.7, edge - 1.7, away);
  // unknown has a dashed ring
  if (kind == 3) ring *= step(0.4, fract(atan(off.y, off.x) * 1.2732));
  colour = vec4(mix(fills[kind], rings[kind], ring), 1.0) * alpha;
}`;

function rgb(hex: string): [number, number, number] {
  const value = Number.parseInt(hex.slice(1).replace(/^(.)(.)(.)$/, "$1$1$2$2$3$3"), 16);
  return [((value >> 16) & 255) / 255, ((value >> 8) & 255) / 255, (value & 255) / 255];
}

function linked(gl: WebGL2RenderingContext): WebGLProgram {
  const program = gl.createProgram();
  for (const [kind, text] of [[gl.VERTEX_SHADER, vertexShader], [gl.FRAGMENT_SHADER, fragmentShader]] as const) {
    const shader = gl.createShader(kind) as WebGLShader;
    gl.shaderSource(shader, text);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  // a program that does not link draws nothing, and is fast
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) {
    throw new Error(`the vehicles' shader does not link: ${gl.getProgramInfoLog(program)}`);
  }
  return program;
}

/** The layer that draws the movers; `now` is the time of the picture in milliseconds of the span. */
export class MoverLayer implements CustomLayerInterface {
  readonly id = "movers";
  readonly type = "custom";
  now = 0;
  stale = true;
  private gl: WebGL2RenderingContext | undefined;
  private program: WebGLProgram | undefined;
  private buffer: WebGLBuffer | null = null;
  private array: WebGLVertexArrayObject | null = null;
  private map: Map | undefined;
  private fills: number[] = [];
  private rings: number[] = [];

  constructor(private readonly movers: Vertices) {}

  onAdd(map: Map, gl: WebGLRenderingContext | WebGL2RenderingContext): void {
    const context = gl as WebGL2RenderingContext;
    [this.map, this.gl] = [map, context];
    this.program = linked(context);
    const colour = colours();
    this.fills = [colour.driving, colour.parked, colour.silent, colour.parked].flatMap(rgb);
    this.rings = [colour.circle, colour.ring, colour.circle, colour.ring].flatMap(rgb);
    this.buffer = context.createBuffer();
    this.array = context.createVertexArray();
    context.bindVertexArray(this.array);
    context.bindBuffer(context.ARRAY_BUFFER, this.buffer);
    context.bufferData(context.ARRAY_BUFFER, this.movers.vertices, context.DYNAMIC_DRAW);
    const bytes = stride * 4;
    for (const [name, size, offset] of [["from", 4, 0], ["to", 4, 16], ["span", 2, 32], ["state", 1, 40]] as const) {
      const at = context.getAttribLocation(this.program, name);
      context.enableVertexAttribArray(at);
      context.vertexAttribPointer(at, size, context.FLOAT, false, bytes, offset);
    }
    context.bindVertexArray(null);
  }

  onRemove(): void {
    this.gl?.deleteProgram(this.program ?? null);
    this.gl?.deleteBuffer(this.buffer);
    this.gl?.deleteVertexArray(this.array);
  }

  render(_gl: WebGLRenderingContext | WebGL2RenderingContext, input: CustomRenderMethodInput): void {
    const { gl, program, map } = this;
    if (!gl || !program || !map) return;
    const centre = map.getCenter();
    const x = mercatorX(centre.lng * 1e7);
    const y = mercatorY(centre.lat * 1e7);
    const [highX, highY] = [Math.fround(x), Math.fround(y)];
    const matrix = Float64Array.from(input.defaultProjectionData.mainMatrix as ArrayLike<number>);
    // positions are relative to the centre, so the matrix moves there first
    for (let row = 0; row < 4; row += 1) {
      matrix[12 + row] = (matrix[12 + row] as number) + x * (matrix[row] as number) + y * (matrix[4 + row] as number);
    }
    const zoom = map.getZoom();
    const radius = zoom < 10 ? 3 + Math.max(zoom - 4, 0) / 3 : Math.min(5 + ((zoom - 10) * 2) / 3, 7);
    const size = (2 * radius + 5) * devicePixelRatio;
    const uniform = (name: string): WebGLUniformLocation | null => gl.getUniformLocation(program, name);
    gl.useProgram(program);
    gl.bindVertexArray(this.array);
    if (this.stale) {
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffer);
      gl.bufferSubData(gl.ARRAY_BUFFER, 0, this.movers.vertices);
      this.stale = false;
    }
    gl.uniformMatrix4fv(uniform("matrix"), false, Float32Array.from(matrix));
    gl.uniform4f(uniform("centre"), highX, highY, x - highX, y - highY);
    gl.uniform1f(uniform("now"), this.now / 1000);
    gl.uniform1f(uniform("size"), size);
    gl.uniform3fv(uniform("fills"), this.fills);
    gl.uniform3fv(uniform("rings"), this.rings);
    gl.drawArrays(gl.POINTS, 0, this.movers.count);
    gl.bindVertexArray(null);
  }
}
