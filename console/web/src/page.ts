// What stands around a picture: elements, rows of tables, values of the style sheet, and times in the page's zone.

/** A new element with these properties and children. */
export function make<Name extends keyof HTMLElementTagNameMap>(
  name: Name,
  properties: Partial<HTMLElementTagNameMap[Name]> = {},
  ...children: Node[]
): HTMLElementTagNameMap[Name] {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

/** A value of the style sheet, for light or dark. */
export const style = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Marks the row with an id, and no other one. */
export function selectRow(id: string | undefined): void {
  document.querySelector("tr.selected")?.classList.remove("selected");
  const row = id === undefined ? null : document.querySelector(`tr[data-id="${CSS.escape(id)}"]`);
  row?.classList.add("selected");
  row?.scrollIntoView({ block: "nearest" });
}

const timeParts = { hour: "2-digit", minute: "2-digit", second: "2-digit" } as const;

/** A formatter of milliseconds since the epoch: date, time of day and the offset of the zone, never the browser's. */
export function clockOf(zone: string): (ms: number) => string {
  const dateParts = { year: "numeric", month: "2-digit", day: "2-digit", timeZoneName: "longOffset" } as const;
  const format = new Intl.DateTimeFormat("sv-SE", { timeZone: zone, ...dateParts, ...timeParts });
  return (ms) => {
    const parts = Object.fromEntries(format.formatToParts(ms).map((one) => [one.type, one.value]));
    const offset = zone === "UTC" ? "UTC" : (parts["timeZoneName"] ?? "").replace("GMT", "") || "+00:00";
    return `${parts["year"]}-${parts["month"]}-${parts["day"]} ${parts["hour"]}:${parts["minute"]}:${parts["second"]} ${offset}`;
  };
}

/** The time of day alone, for axes. */
export function timeOfDay(zone: string): (ms: number) => string {
  const format = new Intl.DateTimeFormat("sv-SE", { timeZone: zone, ...timeParts });
  return (ms) => format.format(ms);
}
