// A job's page: its events, its figures every two seconds, the chart of its epochs, its log as it grows.
import { dress, listen } from "./page.js";
import { TYPES, follow, refresh } from "./follow.js";

const job = document.getElementById("job").dataset.job;
const LONGEST_LOG = 5000;
let chart = null;

function colour(name) {
  const probe = document.createElement("span");
  probe.className = `mark ${name}`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// What the chart has no room for: state and partitions of the epochs under the pointer.
function about(shown) {
  const box = document.createElement("div");
  box.append(new Date(shown[0].data[0]).toLocaleTimeString());
  for (const { seriesName, seriesType, data } of shown) {
    const [, value, epoch] = data;
    const line = box.appendChild(document.createElement("div"));
    line.textContent = seriesType === "line"
      ? `${seriesName} ${value} ms, epoch ${epoch.epoch}, checkpoint ${epoch.size}`
      : `${seriesName} ${value} records, ${epoch.lanes ?? "?"} lanes`;
  }
  return box;
}

function draw() {
  const data = document.getElementById("timeline-data");
  const place = document.getElementById("timeline");
  if (!data || !place || !globalThis.echarts) return;
  const points = JSON.parse(data.textContent);
  const queries = [...new Set(points.map((one) => one.query))];
  const text = getComputedStyle(document.body).color;
  const colours = [colour("busy"), colour("weak"), colour("good")];
  if (chart?.getDom() !== place) {
    chart?.dispose();
    chart = echarts.init(place, null, { renderer: "svg" });
  }
  const axis = { axisLabel: { color: text }, nameTextStyle: { color: text }, splitLine: { lineStyle: { opacity: 0.2 } } };
  chart.setOption({
    animation: false,
    color: colours,
    grid: { left: 60, right: 60, top: 36, bottom: 28 },
    legend: { textStyle: { color: text }, top: 4 },
    tooltip: { trigger: "axis", confine: true, formatter: about },
    xAxis: { type: "time", axisLabel: { color: text, hideOverlap: true } },
    yAxis: [{ ...axis, type: "value", name: "ms" }, { ...axis, type: "value", name: "records", splitLine: { show: false } }],
    series: queries.flatMap((query) => {
      const own = points.filter((one) => one.query === query);
      return [
        { name: `${query}: took`, type: "line", showSymbol: false, data: own.map((one) => [one.at, one.ms, one]),
          markPoint: { symbolSize: 30, data: own.filter((one) => one.replay).map((one) => ({ coord: [one.at, one.ms], value: "replay" })) } },
        { name: `${query}: published`, type: "bar", yAxisIndex: 1, itemStyle: { opacity: 0.35 }, data: own.map((one) => [one.at, one.out, one]) },
      ];
    }),
  });
}

function lines() {
  if (!document.getElementById("lines")) return;
  let after = null;
  const written = (event) => {
    const place = document.getElementById("lines");
    if (event.lastEventId) after = event.lastEventId;
    const line = document.createElement("div");
    line.textContent = event.data;
    place.append(line);
    while (place.childElementCount > LONGEST_LOG) place.firstElementChild.remove();
    if (document.getElementById("follow").checked) place.scrollTop = place.scrollHeight;
  };
  const from = () => new URLSearchParams({ follow: true, ...(after ? { after } : { tail: 500 }) });
  const tell = (state) => { document.getElementById("lines").dataset.state = state; };
  listen(() => `/api/v1/jobs/${job}/logs?${from()}`, { message: written }, { tell });
}

follow(TYPES, job);
document.addEventListener("refreshed", () => { dress(); draw(); });
addEventListener("resize", () => chart?.resize());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
setInterval(refresh, 2000);
addEventListener("load", draw);
lines();
