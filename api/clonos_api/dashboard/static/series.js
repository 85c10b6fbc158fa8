// The charts of a job's figures over time: records per second with the lag, durations of epochs with latencies.
import { problem } from "./page.js";

const box = document.getElementById("series");
const job = document.getElementById("job").dataset.job;
const PAUSE_MS = { "5m": 5000, "1h": 15000, "24h": 60000, "7d": 60000 };
const HEIGHT = 190; // without the legend
const charts = new Map(); // id → { plot, key }
const seconds = (text) => Date.parse(text) / 1000;
const round = (value) => (value === null ? null : Math.round(10 * value) / 10);
const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" });
let shown = null;
let timer = null;

function colour(name) {
  const probe = document.createElement("span");
  probe.className = `mark ${name}`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

// The beginnings of all intervals. One without epochs has no value: a line has a gap there.
function times() {
  const starts = [];
  for (let start = seconds(shown.since); start <= seconds(shown.until); start += shown.interval_s) starts.push(start);
  return starts;
}

function lag(point) {
  const lags = Object.values(point.lag);
  return lags.length ? lags.reduce((sum, records) => sum + records) : null;
}

// Recoveries as areas, versions and savepoints as dashed lines, with texts where there is room.
function annotate(plot) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const at = (text) => plot.valToPos(seconds(text), "x", true);
  const [fault, change] = [colour("bad"), colour("idle")];
  let free = 0;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = `${12 * ratio}px system-ui, sans-serif`;
  ctx.setLineDash([4 * ratio, 4 * ratio]);
  for (const mark of [...shown.annotations].sort((a, b) => seconds(a.at) - seconds(b.at))) {
    const left = at(mark.at);
    ctx.fillStyle = ctx.strokeStyle = mark.kind === "recovery" ? fault : change;
    if (mark.kind === "recovery") {
      ctx.globalAlpha = 0.3;
      ctx.fillRect(left, bbox.top, Math.max(2 * ratio, at(mark.until ?? shown.until) - left), bbox.height);
      ctx.globalAlpha = 1;
    } else {
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
    }
    const { width } = ctx.measureText(mark.text);
    const start = Math.min(left + 3 * ratio, bbox.left + bbox.width - width - 3 * ratio);
    if (start < free) continue;
    ctx.fillText(mark.text, start, bbox.top + 12 * ratio);
    free = start + width + 8 * ratio;
  }
  ctx.restore();
}

function timesOfAxis(plot, splits) {
  const days = shown.range === "7d";
  const format = new Intl.DateTimeFormat(undefined, days ? { month: "short", day: "numeric" } : { timeStyle: "short" });
  return splits.map((at) => format.format(1000 * at));
}

// `axes`: unit of each value axis, the first on the left; `lines`: label, unit, number of the colour, values, and more
// fields of uPlot's series.
function draw(id, axes, lines) {
  const place = document.getElementById(id);
  place.hidden = lines.length === 0;
  if (place.hidden) return;
  const data = [times(), ...lines.map((line) => line.values)];
  const key = [shown.range, ...lines.map((line) => line.label)].join("\n");
  const chart = charts.get(id);
  if (chart?.key === key) return chart.plot.setData(data);
  chart?.plot.destroy();
  const text = colour("idle");
  const faint = { stroke: text, width: 0.2 };
  const colours = [colour("good"), colour("busy"), colour("weak"), getComputedStyle(document.body).color];
  const range = (plot, low, high) => [0, high > 0 ? 1.1 * high : 1];
  const options = {
    width: place.clientWidth - 12,
    height: HEIGHT,
    cursor: { drag: { x: false, y: false } },
    scales: { x: { range: () => [seconds(shown.since), seconds(shown.until)] }, ...Object.fromEntries(axes.map((unit) => [unit, { range }])) },
    axes: [
      { stroke: text, grid: faint, ticks: faint, space: 75, values: timesOfAxis },
      ...axes.map((unit, index) => ({ scale: unit, label: unit, side: index ? 1 : 3, stroke: text, grid: index ? { show: false } : faint, ticks: faint, size: 60, labelSize: 18 })),
    ],
    series: [
      { label: "time", value: (plot, at) => (at === null ? "–" : moment.format(1000 * at)) },
      ...lines.map(({ values, colour, ...line }) => ({
        stroke: colours[colour % colours.length], width: 1.5,
        value: (plot, value) => (value === null ? "–" : value.toLocaleString()), ...line,
      })),
    ],
    // A line's mark in the legend has its stroke.
    legend: { markers: { width: 2, dash: (plot, index) => ({ 2: "dotted", 6: "dashed" })[lines[index - 1]?.dash?.[0]] ?? "solid" } },
    hooks: { drawAxes: [annotate] },
  };
  charts.set(id, { plot: new uPlot(options, data, place), key });
}

function drawAll() {
  if (!shown) return;
  const starts = times();
  const queries = Object.entries(shown.queries);
  // One query: a colour for each figure. Several: a colour for each query, and its figures differ by their strokes.
  const of = (query, points, [what, colour], scale, value, stroke = {}) => {
    const values = new Map(points.map((point) => [seconds(point.at), value(point)]));
    const several = queries.length > 1;
    return {
      label: several ? `${query}: ${what}` : what,
      colour: several ? queries.findIndex(([name]) => name === query) : colour,
      scale, values: starts.map((start) => values.get(start) ?? null), ...stroke,
    };
  };
  document.getElementById("series-none").hidden = queries.length > 0;
  draw("rates", ["records/s", "lag, records"], queries.flatMap(([query, points]) => [
    of(query, points, ["read", 0], "records/s", (point) => round(point.records_in_per_s)),
    of(query, points, ["published", 1], "records/s", (point) => round(point.records_out_per_s), { dash: [6, 4] }),
    of(query, points, ["lag", 2], "lag, records", lag, { dash: [2, 3] }),
  ]));
  draw("durations", ["ms"], queries.flatMap(([query, points]) => {
    const finished = points.filter((point) => point.epochs);
    const timed = points.filter((point) => point.latency_ms_p50 !== null);
    return [
      of(query, finished, ["epoch, p50", 0], "ms", (point) => round(point.epoch_ms_p50)),
      of(query, finished, ["epoch, p99", 0], "ms", (point) => round(point.epoch_ms_p99), { dash: [6, 4] }),
      of(query, timed, ["latency, p50", 1], "ms", (point) => round(point.latency_ms_p50), { width: 3 }),
      of(query, timed, ["latency, p99", 1], "ms", (point) => round(point.latency_ms_p99), { width: 3, dash: [6, 4] }),
    ];
  }));
}

function redraw() {
  for (const { plot } of charts.values()) plot.destroy();
  charts.clear();
  drawAll();
}

async function load() {
  clearTimeout(timer);
  const range = box.querySelector("input:checked").value;
  if (!document.hidden) {
    const response = await fetch(`api/v1/jobs/${job}/series?range=${range}`, { cache: "no-store" }).catch(() => null);
    const failure = document.getElementById("series-failure");
    failure.textContent = response && !response.ok ? await problem(response) : "";
    if (response?.ok) shown = await response.json();
    drawAll();
  }
  timer = setTimeout(load, PAUSE_MS[range]);
}

box.addEventListener("change", load);
addEventListener("resize", () => charts.forEach(({ plot }, id) => plot.setSize({ width: document.getElementById(id).clientWidth - 12, height: HEIGHT })));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
load();
