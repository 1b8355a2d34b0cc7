// A graph over time with a line at the time of a picture.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { make, style, timeOfDay } from "./page";

export interface Graph {
  /** Other values: seconds since the epoch, and values with null where nothing is known. */
  show(name: string, times: number[], values: (number | null)[]): void;
  /** Moves the line to a time in seconds. */
  mark(seconds: number): void;
}

/** A graph at the end of an element. `seek` is called with the time that the user clicks. */
export function makeGraph(element: HTMLElement, zone: string, unit: string, range: [number, number], seek: (seconds: number) => void): Graph {
  // the same is told by the tables
  const holder = element.appendChild(make("div", { className: "graph", ariaHidden: "true" }));
  const text = timeOfDay(zone);
  const axis = { stroke: style("muted"), grid: { stroke: style("line"), width: 1 }, ticks: { stroke: style("line") }, font: "11px 'Noto Sans'" };
  const height = 120;
  const plot = new uPlot(
    {
      width: Math.max(holder.clientWidth, 200),
      height,
      scales: { x: { range: () => range }, y: { range: (_self, _low, high) => [0, Math.max(high * 1.1, 10)] } },
      axes: [
        { ...axis, values: (_self, splits) => splits.map((one) => text(one * 1000)) },
        { ...axis, size: 44, values: (_self, splits) => splits.map((one) => `${one}`) },
      ],
      series: [{}, { label: unit, stroke: style("accent"), width: 1.2, spanGaps: false, points: { show: false } }],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
    },
    [[], []],
    holder,
  );
  const name = make("p", { className: "graph-name" });
  holder.prepend(name);
  const line = plot.over.appendChild(make("div", { className: "playhead" }));
  plot.over.addEventListener("click", () => {
    const at = plot.cursor.left;
    if (at !== undefined && at >= 0) seek(plot.posToVal(at, "x"));
  });
  let marked = range[0];
  const mark = (seconds: number): void => {
    marked = seconds;
    line.style.transform = `translateX(${plot.valToPos(seconds, "x").toFixed(1)}px)`;
  };
  new ResizeObserver(() => {
    plot.setSize({ width: Math.max(holder.clientWidth, 200), height });
    mark(marked);
  }).observe(holder);
  return {
    show(title, times, values) {
      name.textContent = `${title}, ${unit}`;
      plot.setData([times, values]);
    },
    mark,
  };
}
