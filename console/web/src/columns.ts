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

export type Place = [longitude: number, latitude: number];

/** Longitudes and latitudes as columns of 1e-7 degrees, and the place at an index. */
export interface Places {
  longitude: Int32Array;
  latitude: Int32Array;
}

export const placesOf = (columns: { longitude?: unknown; latitude?: unknown }): Places => ({
  longitude: int32(columns.longitude),
  latitude: int32(columns.latitude),
});

export const placeAt = (places: Places, at: number): Place => [
  (places.longitude[at] as number) / degree,
  (places.latitude[at] as number) / degree,
];

/** A longitude the short way on from the one before, which may be beyond the antimeridian. */
export const onward = (longitude: number, before: number | undefined): number =>
  before === undefined ? longitude : longitude - 360 * Math.round((longitude - before) / 360);

/** Lines of consecutive places, or of one in `each` of them and the last; each line begins at one of `begins`. A line across the antimeridian goes on beyond it. */
export function linesOf(places: Places, begins: Int32Array, each = 1): Place[][] {
  return Array.from(begins, (begin, piece) => {
    const line: Place[] = [];
    const end = begins[piece + 1] ?? places.longitude.length;
    for (let at = begin; at < end; at += 1) {
      if ((at - begin) % each && at + 1 < end) continue;
      const [longitude, latitude] = placeAt(places, at);
      line.push([onward(longitude, line[line.length - 1]?.[0]), latitude]);
    }
    return line;
  });
}
