// A job's page: its events, its figures every two seconds, the chart of its epochs, its log.
import { dress, listen } from "./page.js";
import { TYPES, follow, refresh } from "./follow.js";

const job = document.getElementById("job").dataset.job;
const LONGEST_LOG = 5000;
let chart = null;

function colour(name) {
  const probe = document.createElement("span");
  probe.className = `mark ${name}`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

// The tooltip: Spark batch, checkpoint size and lanes of the epochs under the pointer.
function about(shown) {
  const box = document.createElement("div");
  box.append(new Date(shown[0].data[0]).toLocaleTimeString());
  for (const { seriesName, seriesType, data } of shown) {
    const [, value, epoch] = data;
    const line = box.appendChild(document.createElement("div"));
    line.textContent = seriesType === "line"
      ? `${seriesName} ${value} ms, epoch ${epoch.epoch} / Spark batch ${epoch.epoch}, checkpoint ${epoch.size}`
      : `${seriesName} ${value} records, ${epoch.lanes ?? "?"} lanes`;
  }
  return box;
}

function draw() {
  const data = document.getElementById("timeline-data");
  const box = document.getElementById("timeline");
  if (!data || !box || !globalThis.echarts) return;
  const points = JSON.parse(data.textContent);
  const queries = [...new Set(points.map((point) => point.query))];
  const text = getComputedStyle(document.body).color;
  const colours = [colour("busy"), colour("weak"), colour("good")];
  if (chart?.getDom() !== box) {
    chart?.dispose();
    chart = echarts.init(box, null, { renderer: "svg" });
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
      const own = points.filter((point) => point.query === query);
      return [
        { name: `${query}: duration`, type: "line", showSymbol: false, data: own.map((point) => [point.at, point.ms, point]),
          markPoint: { symbolSize: 30, data: own.filter((point) => point.replay).map((point) => ({ coord: [point.at, point.ms], value: "replay" })) } },
        { name: `${query}: published`, type: "bar", yAxisIndex: 1, itemStyle: { opacity: 0.35 }, data: own.map((point) => [point.at, point.out, point]) },
      ];
    }),
  });
}

function lines() {
  if (!document.getElementById("lines")) return;
  let after = null;
  const append = (event) => {
    const log = document.getElementById("lines");
    if (event.lastEventId) after = event.lastEventId;
    const line = document.createElement("div");
    line.textContent = event.data;
    log.append(line);
    while (log.childElementCount > LONGEST_LOG) log.firstElementChild.remove();
    if (document.getElementById("follow").checked) log.scrollTop = log.scrollHeight;
  };
  const from = () => new URLSearchParams({ follow: true, ...(after ? { after } : { tail: 500 }) });
  const show = (state) => { document.getElementById("lines").dataset.state = state; };
  listen(() => `/api/v1/jobs/${job}/logs?${from()}`, { message: append }, { show });
}

follow(TYPES, job);
document.addEventListener("refreshed", () => { dress(); draw(); });
addEventListener("resize", () => chart?.resize());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
setInterval(refresh, 2000);
addEventListener("load", draw);
lines();
