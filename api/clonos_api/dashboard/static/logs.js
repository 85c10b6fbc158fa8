// The log of a job: parsed on the server, filtered there, and followed. Normal epochs in a row are one line.
import { listen } from "./page.js";

const job = document.getElementById("job").dataset.job;
const LONGEST = 5000;
const PROCESSES = { driver: "driver", standby: "standby", "spark-jvm": "Spark JVM", "python-worker": "Python worker" };
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const date = new Intl.DateTimeFormat(undefined, { dateStyle: "full" });
const field = (id) => document.getElementById(id);

let after = null;
let day = "";
let group = null; // normal epochs at the end of the log: `clonos.telemetry.log_entries.collapse_epochs`
let due = null;

function query(more) {
  const search = field("log-search").value.trim();
  const level = field("log-level").value;
  return new URLSearchParams({ ...(search && { search }), ...(level && { level }), ...more });
}

function element(name, text, className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

function rowOf(entry) {
  const row = element("div", "", `entry ${entry.level}`);
  const at = entry.time && new Date(entry.time);
  const time = element("span", at ? clock.format(at) : "", "dim");
  time.title = entry.time ?? "";
  const process = PROCESSES[entry.process] + (entry.generation ? ` g${entry.generation}` : "");
  const message = element("span", entry.message, "message");
  row.append(time, element("b", entry.level), element("span", process, "dim"), message);
  if (entry.lines.length) {
    const more = document.createElement("details");
    more.append(element("summary", entry.lines.length === 1 ? "1 more line" : `${entry.lines.length} more lines`));
    more.append(element("div", entry.lines.join("\n")));
    row.append(more);
  }
  if (at && date.format(at) !== day) {
    day = date.format(at);
    field("lines").append(element("div", day, "dim"));
  }
  return row;
}

function collapse(entry, row) {
  const key = `${entry.run} ${entry.generation}`;
  if (group?.key !== key) group = { key, count: 0, epochs: new Map(), lags: new Map(), rows: [] };
  group.count += 1;
  group.rows.push(row);
  if (entry.epoch !== null) {
    const [low, high] = group.epochs.get(entry.query) ?? [entry.epoch, entry.epoch];
    group.epochs.set(entry.query, [Math.min(low, entry.epoch), Math.max(high, entry.epoch)]);
  }
  if (entry.epoch === null) group.lags.set(entry.query, entry.message);
  if (group.count <= Math.max(1, group.epochs.size ? 0 : group.lags.size)) return;
  for (const old of group.rows.splice(0, group.rows.length - 1)) old.remove();
  const parts = [...group.epochs].map(([name, [low, high]]) =>
    `${group.epochs.size > 1 ? `${name}: ` : ""}${low === high ? `epoch ${low}` : `epochs ${low}–${high}`}`);
  if (!parts.length) row.querySelector(".message").textContent = `${[...group.lags.values()].join("; ")} (newest of ${group.count} lines)`;
  else row.querySelector(".message").textContent = `${parts.join(", ")} committed, ${group.count} lines`;
}

function append(event) {
  if (event.lastEventId) after = event.lastEventId;
  const log = field("lines");
  field("log-empty").hidden = true;
  if (field("log-raw").checked) log.append(element("div", event.data));
  else {
    const entry = JSON.parse(event.data);
    const row = rowOf(entry);
    log.append(row);
    if (entry.routine && !field("log-epochs").checked) collapse(entry, row);
    else group = null;
  }
  while (log.childElementCount > LONGEST) log.firstElementChild.remove();
  if (field("follow").checked) log.scrollTop = log.scrollHeight;
}

// The first lines come with the answer; without any, there are none.
function opened() {
  setTimeout(() => {
    const empty = field("log-empty");
    empty.hidden = field("lines").childElementCount > 0;
    empty.textContent = query({}).size ? "No line matches." : "The job's drivers have written no log lines yet.";
  }, 500);
}

const address = () => {
  const parsed = field("log-raw").checked ? {} : { parsed: true };
  return `api/v1/jobs/${job}/logs?${query({ follow: true, ...parsed, ...(after ? { after } : { tail: 500 }) })}`;
};
const show = (state) => { field("lines").dataset.state = state; };
const restart = listen(address, { message: append }, { show, onOpen: opened });

function change() {
  [after, day, group] = [null, "", null];
  field("lines").replaceChildren();
  field("log-download").href = `api/v1/jobs/${job}/logs?${query({ download: true })}`;
  restart();
}

for (const id of ["log-level", "log-raw", "log-epochs"]) field(id).addEventListener("change", change);
field("log-search").addEventListener("input", () => {
  clearTimeout(due);
  due = setTimeout(change, 300);
});
