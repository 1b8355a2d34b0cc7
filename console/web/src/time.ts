// Times in the page's zone, never silently the browser's.

/** A formatter of milliseconds since the epoch: date, time of day and the offset of the zone. */
export function clockOf(zone: string): (ms: number) => string {
  const format = new Intl.DateTimeFormat("sv-SE", {
    timeZone: zone,
    year: "numeric",
    month: "2-digit",
    day: "2-digit",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    timeZoneName: "longOffset",
  });
  return (ms) => {
    const parts = Object.fromEntries(format.formatToParts(ms).map((one) => [one.type, one.value]));
    const offset = zone === "UTC" ? "UTC" : (parts["timeZoneName"] ?? "").replace("GMT", "") || "+00:00";
    return `${parts["year"]}-${parts["month"]}-${parts["day"]} ${parts["hour"]}:${parts["minute"]}:${parts["second"]} ${offset}`;
  };
}

/** The time of day alone, for axes. */
export function timeOfDay(zone: string): (ms: number) => string {
  const format = new Intl.DateTimeFormat("sv-SE", { timeZone: zone, hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return (ms) => format.format(ms);
}
