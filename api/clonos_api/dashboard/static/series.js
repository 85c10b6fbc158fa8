// The charts of a job's figures over time: records per second with the lag, and durations of epochs.
import { problem } from "./page.js";

const box = document.getElementById("series");
const job = document.getElementById("job").dataset.job;
const PAUSE_MS = { "5m": 5000, "1h": 15000, "24h": 60000, "7d": 60000 };
const charts = new Map();
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

// An interval without epochs has no point: the line has a gap there.
function line(points, value, interval) {
  const data = [];
  for (const point of points) {
    const at = Date.parse(point.at);
    if (data.length && at - data.at(-1)[0] > 1.5 * interval) data.push([data.at(-1)[0] + interval, null]);
    data.push([at, value(point)]);
  }
  return data;
}

function lag(point) {
  const lags = Object.values(point.lag);
  return lags.length ? lags.reduce((sum, records) => sum + records) : null;
}

function marks(series, fault, change) {
  const moments = series.annotations.filter((mark) => mark.kind !== "recovery");
  const recoveries = series.annotations.filter((mark) => mark.kind === "recovery");
  return {
    markLine: {
      symbol: "none", silent: true, lineStyle: { color: change, type: "dashed" },
      label: { formatter: "{b}", color: change }, data: moments.map((mark) => ({ name: mark.text, xAxis: mark.at })),
    },
    markArea: {
      silent: true, itemStyle: { color: fault, opacity: 0.25 }, label: { color: fault },
      data: recoveries.map((mark) => [{ name: mark.text, xAxis: mark.at }, { xAxis: mark.until ?? series.until }]),
    },
  };
}

function draw(id, series, axes, lines) {
  const place = document.getElementById(id);
  const text = getComputedStyle(document.body).color;
  if (!charts.has(id)) charts.set(id, echarts.init(place, null, { renderer: "svg" }));
  const axis = { type: "value", axisLabel: { color: text }, nameTextStyle: { color: text }, splitLine: { lineStyle: { opacity: 0.2 } } };
  const first = marks(series, colour("bad"), colour("idle"));
  charts.get(id).setOption({
    animation: false,
    color: [colour("good"), colour("busy"), colour("weak"), text],
    grid: { left: 60, right: 60, top: 40, bottom: 28 },
    legend: { type: "scroll", textStyle: { color: text }, top: 4 },
    tooltip: { trigger: "axis", confine: true },
    xAxis: { type: "time", min: series.since, max: series.until, axisLabel: { color: text, hideOverlap: true } },
    yAxis: axes.map((name, index) => ({ ...axis, name, ...(index && { splitLine: { show: false } }) })),
    series: lines.map((entry, index) => ({ type: "line", showSymbol: entry.data.length < 3, connectNulls: false, ...entry, ...(index ? {} : first) })),
  }, { notMerge: true });
}

function drawAll() {
  if (!shown || !globalThis.echarts) return;
  const interval = 1000 * shown.interval_s;
  const queries = Object.entries(shown.queries);
  const several = queries.length > 1;
  const name = (query, what) => (several ? `${query}: ${what}` : what);
  const of = (query, points, what, value, more = {}) => ({ name: name(query, what), data: line(points, value, interval), ...more });
  document.getElementById("series-none").hidden = queries.length > 0;
  const round = (value) => (value === null ? null : Math.round(10 * value) / 10);
  draw("rates", shown, ["records/s", "lag, records"], queries.flatMap(([query, points]) => [
    of(query, points, "read", (point) => round(point.records_in_per_s)),
    of(query, points, "published", (point) => round(point.records_out_per_s)),
    of(query, points.filter((point) => lag(point) !== null), "lag", lag, { yAxisIndex: 1, lineStyle: { type: "dotted" } }),
  ]));
  draw("durations", shown, ["ms"], queries.flatMap(([query, points]) => {
    const finished = points.filter((point) => point.epochs);
    return [
      of(query, finished, "epoch, p50", (point) => round(point.epoch_ms_p50)),
      of(query, finished, "epoch, p99", (point) => round(point.epoch_ms_p99), { lineStyle: { type: "dashed" } }),
    ];
  }));
}

async function load() {
  clearTimeout(timer);
  const range = box.querySelector("input:checked").value;
  if (!document.hidden) {
    const response = await fetch(`/api/v1/jobs/${job}/series?range=${range}`, { cache: "no-store" }).catch(() => null);
    const failure = document.getElementById("series-failure");
    failure.textContent = response && !response.ok ? await problem(response) : "";
    if (response?.ok) shown = await response.json();
    drawAll();
  }
  timer = setTimeout(load, PAUSE_MS[range]);
}

box.addEventListener("change", load);
addEventListener("resize", () => charts.forEach((chart) => chart.resize()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
addEventListener("load", load);
