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

/** The server sends an update at least every 10 s. */
const silentMs = 30_000;
const firstPauseMs = 5000;
const longestPauseMs = 60_000;

/** Follows the stream while the tab can be seen: a browser has six connections to a host, for all of its tabs.
 *
 * `ids`: TENANT/DEVICE of each row of an update. `lost`: what is shown may be old, until the next update.
 */
export function follow(address: string, take: (ids: string[], update: Update) => void, lost: () => void): void {
  const ids: string[] = [];
  let source: EventSource | undefined;
  let timer = 0;
  let pauseMs = firstPauseMs;

  const close = (): void => {
    clearTimeout(timer);
    source?.close();
    source = undefined;
  };
  const retry = (afterMs: number, then: () => void): void => {
    close();
    lost();
    pauseMs = Math.min(2 * pauseMs, longestPauseMs);
    timer = window.setTimeout(then, afterMs);
  };
  const open = (): void => {
    close();
    if (document.hidden) return;
    const opened = new EventSource(address);
    source = opened;
    // a connection may end without a sign of it; a first update may be long on its way
    const watch = (): void => {
      clearTimeout(timer);
      timer = window.setTimeout(() => retry(0, open), silentMs + pauseMs - firstPauseMs);
    };
    watch();
    opened.addEventListener("open", () => {
      ids.length = 0;
    });
    opened.addEventListener("devices", (event) => {
      const { from, ids: more } = JSON.parse((event as MessageEvent<string>).data) as { from: number; ids: string[] };
      ids.splice(from, ids.length - from, ...more);
    });
    opened.addEventListener("fixes", (event) => {
      pauseMs = firstPauseMs;
      watch();
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
    // after a refusal a browser does not try again; an EventSource does not say which it was
    opened.addEventListener("error", () => {
      const isRefused = opened.readyState === EventSource.CLOSED;
      retry(pauseMs, isRefused ? () => void reloadIfSignedOut(address).then(open) : open);
    });
  };

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) lost();
    open();
  });
  addEventListener("pagehide", close);
  open();
}

/** A session has an end: a page that is loaded again leads to sign in. */
async function reloadIfSignedOut(address: string): Promise<void> {
  const asked = new AbortController();
  setTimeout(() => asked.abort(), silentMs);
  try {
    const answer = await fetch(address, { signal: asked.signal });
    if (answer.status === 401) location.reload();
  } catch {
    // it is not reachable yet: the next try says so
  } finally {
    asked.abort();
  }
}
