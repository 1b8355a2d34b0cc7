// The live stream: the last fixes of all devices that the viewer may see, at most once a second.
import { int16, int32, type Places, placesOf } from "./columns";

export interface Update extends Places {
  time: Int32Array;
  speed: Int16Array;
  heading: Int16Array;
  now: number;
  source: "topics" | "lake";
  cluster: string;
  heardAt: number | null;
  problem: string;
}

/** The columns of fixes in a page and in the stream. */
export const fixesOf = (columns: Record<string, unknown>): Pick<Update, "longitude" | "latitude" | "time" | "speed" | "heading"> => ({
  ...placesOf(columns),
  time: int32(columns["time"]),
  speed: int16(columns["speed"]),
  heading: int16(columns["heading"]),
});

/** Follows the stream until the page goes. `ids`: TENANT/DEVICE of each row of an update. */
export function follow(
  address: string,
  take: (ids: string[], update: Update) => void,
  lost: (since: number) => void,
): EventSource {
  const source = new EventSource(address);
  const ids: string[] = [];
  let brokenSince = 0;
  source.addEventListener("open", () => {
    ids.length = 0;
    brokenSince = 0;
  });
  source.addEventListener("devices", (event) => {
    const { from, ids: more } = JSON.parse((event as MessageEvent<string>).data) as { from: number; ids: string[] };
    ids.splice(from, ids.length - from, ...more);
  });
  source.addEventListener("fixes", (event) => {
    const data = JSON.parse((event as MessageEvent<string>).data) as Record<string, unknown>;
    take(ids, {
      ...fixesOf(data),
      now: data["now"] as number,
      source: data["source"] as Update["source"],
      cluster: data["cluster"] as string,
      heardAt: data["heard_at"] as number | null,
      problem: data["problem"] as string,
    });
  });
  source.addEventListener("error", () => {
    brokenSince ||= Date.now();
    lost(brokenSince);
  });
  addEventListener("pagehide", () => source.close());
  return source;
}
