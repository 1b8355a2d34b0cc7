// Each page works without this script. A page names its picture, and the picture's code is fetched only then.
import "./style.css";
import "./bills.css";

export type Island = (element: HTMLElement, data: Record<string, unknown>) => void | Promise<void>;

const islands: Record<string, () => Promise<{ draw: Island }>> = {
  device: () => import("./device"),
  evidence: () => import("./evidence"),
  alerts: () => import("./fences"),
  fences: () => import("./fences"),
  fleet: () => import("./fleet"),
  replay: () => import("./replay"),
  where: () => import("./where"),
};

/** Tables come first: the data and the code of a map would delay the first paint by up to a second. */
const painted = new Promise<void>((resolve) => {
  new PerformanceObserver(() => resolve()).observe({ type: "paint", buffered: true });
  // a tab in the background paints nothing
  setTimeout(resolve, 1000);
});

async function start(element: HTMLElement): Promise<void> {
  const kind = element.dataset.island ?? "";
  const load = islands[kind];
  if (!load) return;
  await painted;
  const answer = await fetch(element.dataset.address ?? location.href, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error(`${answer.status} of ${answer.url}`);
  const page = (await answer.json()) as { island: Record<string, unknown> };
  const { draw } = await load();
  await draw(element, page.island);
}

for (const element of document.querySelectorAll<HTMLElement>("[data-island]")) {
  start(element).catch((error: unknown) => {
    console.error(error);
    element.textContent = `The picture cannot be drawn: ${String(error)}. The tables have the same rows.`;
    element.classList.add("failed");
  });
}
