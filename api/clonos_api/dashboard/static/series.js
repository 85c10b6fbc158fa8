// The charts of a job's figures over time: records per second with the lag, durations of epochs with latencies.
import { problem } from "./page.js";

const box = document.getElementById("series");
const job = document.getElementById("job").dataset.job;
const PAUSE_MS = { "5m": 5000, "1h": 15000, "24h": 60000, "7d": 60000 };
const HEIGHT = 190; // without the legend
const charts = new Map(); // id → { plot, key }
const seconds = (text) => Date.parse(text) / 1000;
const round = (value) => (value === null ? null : Math.round(10 * value) / 10);
const OUTLIER = 5; // an axis ends below values that are this many times as high as nearly all others
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

// The end of an axis. A few outliers, such as the first latency after a start, must not flatten all other values.
function highest(lists) {
  const values = lists.flat().filter((value) => value !== null).sort((a, b) => a - b);
  const most = values[Math.floor(0.9 * (values.length - 1))] ?? 0;
  const whole = values.at(-1) ?? 0;
  return { end: most > 0 && whole > OUTLIER * most ? 2 * most : whole, whole };
}

// Milliseconds in the one or two units that a person would say.
function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 1 : 0).replace(/\.0$/, "")} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min${seconds % 60 ? ` ${seconds % 60} s` : ""}`;
}

const TEXTS = { time: duration };
const textOf = (unit) => TEXTS[unit] ?? ((value) => value.toLocaleString());

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
  ctx.textAlign = "left"; // the axes leave theirs
  ctx.textBaseline = "alphabetic";
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
  const ends = Object.fromEntries(axes.map((unit) => [unit, highest(lines.filter((line) => line.scale === unit).map((line) => line.values))]));
  const cut = axes.filter((unit) => ends[unit].whole > ends[unit].end);
  const note = place.querySelector(".cut") ?? place.appendChild(Object.assign(document.createElement("p"), { className: "cut dim" }));
  note.textContent = cut.map((unit) => `▲ ${unit}: the highest value, ${textOf(unit)(ends[unit].whole)}, is above the axis.`).join(" ");
  const key = [shown.range, ...lines.map((line) => line.label)].join("\n");
  const chart = charts.get(id);
  if (chart?.key === key) {
    chart.ends = ends;
    return chart.plot.setData(data);
  }
  chart?.plot.destroy();
  const text = colour("idle");
  const faint = { stroke: text, width: 0.2 };
  const colours = [colour("good"), colour("busy"), colour("weak"), getComputedStyle(document.body).color];
  const drawn = { key, ends };
  const range = (unit) => () => [0, 1.1 * drawn.ends[unit].end || 1];
  const options = {
    width: place.clientWidth - 12,
    height: HEIGHT,
    cursor: { drag: { x: false, y: false } },
    scales: { x: { range: () => [seconds(shown.since), seconds(shown.until)] }, ...Object.fromEntries(axes.map((unit) => [unit, { range: range(unit) }])) },
    axes: [
      { stroke: text, grid: faint, ticks: faint, space: 75, values: timesOfAxis },
      ...axes.map((unit, index) => ({ scale: unit, label: unit, side: index ? 1 : 3, stroke: text, grid: index ? { show: false } : faint, ticks: faint, size: 66, labelSize: 18, values: (plot, splits) => splits.map(textOf(unit)) })),
    ],
    series: [
      { label: "time", value: (plot, at) => (at === null ? "–" : moment.format(1000 * at)) },
      ...lines.map(({ values, colour, ...line }) => ({
        stroke: colours[colour % colours.length], width: 1.5,
        // Without a pointer: the newest value.
        value: (plot, value, series, index) => {
          const text = textOf(line.scale);
          if (index !== null) return value === null ? "–" : text(value);
          const newest = plot.data[series]?.findLast((each) => each !== null);
          return newest === undefined || newest === null ? "–" : text(newest);
        },
        ...line,
      })),
    ],
    // A line's mark in the legend has its stroke.
    legend: { markers: { width: 2, dash: (plot, index) => ({ 2: "dotted", 6: "dashed" })[lines[index - 1]?.dash?.[0]] ?? "solid" } },
    hooks: { drawAxes: [annotate] },
  };
  charts.set(id, drawn);
  drawn.plot = new uPlot(options, data, place);
  place.append(note);
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
  draw("durations", ["time"], queries.flatMap(([query, points]) => {
    const finished = points.filter((point) => point.epochs);
    const timed = points.filter((point) => point.latency_ms_p50 !== null);
    return [
      of(query, finished, ["epoch, p50", 0], "time", (point) => round(point.epoch_ms_p50)),
      of(query, finished, ["epoch, p99", 0], "time", (point) => round(point.epoch_ms_p99), { dash: [6, 4] }),
      of(query, timed, ["latency, p50", 1], "time", (point) => round(point.latency_ms_p50), { width: 3 }),
      of(query, timed, ["latency, p99", 1], "time", (point) => round(point.latency_ms_p99), { width: 3, dash: [6, 4] }),
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
