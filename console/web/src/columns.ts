// Columns of a page or of the live stream: base64 of little-endian numbers. The server has them in console/fixes.py.

function bytes(text: string): ArrayBuffer {
  const characters = atob(text);
  const made = new Uint8Array(characters.length);
  for (let at = 0; at < characters.length; at += 1) made[at] = characters.charCodeAt(at);
  return made.buffer;
}

export const int32 = (text: unknown): Int32Array => new Int32Array(bytes(text as string));
export const int16 = (text: unknown): Int16Array => new Int16Array(bytes(text as string));

const degree = 1e7;

/** Longitudes and latitudes as columns of 1e-7 degrees, and the place at an index. */
export interface Places {
  longitude: Int32Array;
  latitude: Int32Array;
}

export const placesOf = (columns: Record<string, unknown>): Places => ({
  longitude: int32(columns["longitude"]),
  latitude: int32(columns["latitude"]),
});

export const placeAt = (places: Places, at: number): [number, number] => [
  (places.longitude[at] as number) / degree,
  (places.latitude[at] as number) / degree,
];

/** Lines of consecutive places; each begins at one of `begins`. A line across the antimeridian goes on beyond it. */
export function linesOf(places: Places, begins: Int32Array): [number, number][][] {
  const lines: [number, number][][] = [];
  for (let piece = 0; piece < begins.length; piece += 1) {
    const end = piece + 1 < begins.length ? (begins[piece + 1] as number) : places.longitude.length;
    const line: [number, number][] = [];
    let shift = 0;
    for (let at = begins[piece] as number; at < end; at += 1) {
      const [longitude, latitude] = placeAt(places, at);
      const before = line[line.length - 1];
      if (before) {
        const step = longitude + shift - before[0];
        if (Math.abs(step) > 180) shift -= Math.sign(step) * 360;
      }
      line.push([longitude + shift, latitude]);
    }
    lines.push(line);
  }
  return lines;
}
