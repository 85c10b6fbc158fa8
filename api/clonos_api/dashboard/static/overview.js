// The overview, updated by one stream: whole rows when they change, single cells for figures.
import { dress, fresh, listen } from "./page.js";

const body = document.getElementById("rows");
const filter = document.getElementById("filter");
const trouble = document.getElementById("trouble");
const count = document.getElementById("shown");
const known = new Map(); // job id → HTML of its row, as received
const around = {};
let order = [...body.rows].map((row) => row.id.slice(2)); // job ids: those that need attention first

const rowOf = (id) => document.getElementById(`j-${id}`);

function fits(row) {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  return words.every((word) => row.dataset.words.includes(word))
    && (!trouble.checked || ["bad", "busy", "weak"].includes(row.className));
}

function choose() {
  let left = 0;
  for (const row of body.rows) {
    const hidden = !fits(row);
    if (row.hidden !== hidden) row.hidden = hidden;
    if (!hidden) left += 1;
  }
  count.textContent = left === body.rows.length ? "" : `${left} of ${body.rows.length} jobs`;
}

function put(rows) {
  for (const [id, html] of Object.entries(rows)) {
    if (known.get(id) === html && rowOf(id)) continue;
    known.set(id, html);
    const template = document.createElement("template");
    template.innerHTML = html;
    const row = template.content.firstElementChild;
    dress(row);
    const old = rowOf(id);
    if (!old) {
      body.append(row);
      continue;
    }
    for (const cell of old.querySelectorAll("[data-figure]")) {
      const same = row.querySelector(`[data-figure="${cell.dataset.figure}"]`);
      if (same) same.textContent = cell.textContent; // a row has the figure of its standby only while that warms up
    }
    const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    old.replaceWith(row);
    if (focused) row.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }
}

// The address names the column: `?sort=lag`, or `?sort=-lag` for the largest first. Without it, jobs that need attention
// are first.
const number = (row, index) => parseFloat(row.querySelector(`[data-figure="${index}"]`).textContent.replace(/[^\d.]/g, ""));
const KEYS = {
  name: (row) => row.querySelector("th a").textContent,
  state: (row) => row.dataset.state,
  lag: (row) => number(row, 0),
  published: (row) => number(row, 1),
};
let sort = new URLSearchParams(location.search).get("sort") ?? "";

function sorted() {
  const descending = sort.startsWith("-");
  const key = KEYS[sort.replace("-", "")];
  const listed = order.filter(rowOf);
  if (!key) return listed;
  const keys = new Map(listed.map((id) => [id, key(rowOf(id))]));
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
  return listed.sort((left, right) => {
    const [a, b] = [keys.get(left), keys.get(right)];
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b); // no figure: last in both directions
    return descending ? compare(b, a) : compare(a, b);
  });
}

// Moves only the rows that are out of order.
function arrange() {
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  let next = body.firstElementChild;
  for (const id of sorted()) {
    const row = rowOf(id);
    if (row === next) next = next.nextElementSibling;
    else body.insertBefore(row, next);
  }
  if (focused !== null && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

function markColumns() {
  for (const button of document.querySelectorAll("#head [data-sort]")) {
    const chosen = button.dataset.sort === sort.replace("-", "");
    button.closest("th").ariaSort = chosen ? (sort.startsWith("-") ? "descending" : "ascending") : null;
  }
}

// The first click sorts, the second reverses, the third restores the order by attention.
function sortBy(column) {
  const turns = ["lag", "published"].includes(column) ? [`-${column}`, column, ""] : [column, `-${column}`, ""];
  sort = turns[turns.indexOf(sort) + 1] ?? turns[0];
  history.replaceState(null, "", sort ? `?sort=${sort}` : location.pathname);
  markColumns();
  arrange();
}

function frame(update) {
  for (const part of ["head", "banner", "counts", "strip"]) {
    if (!(part in update) || around[part] === update[part]) continue;
    around[part] = update[part];
    const element = document.getElementById(part);
    const focused = element.contains(document.activeElement) ? document.activeElement : null;
    const [link, column] = [focused?.getAttribute("href"), focused?.getAttribute("data-sort")];
    element.innerHTML = update[part];
    if (link) element.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus();
    else if (column) element.querySelector(`[data-sort="${column}"]`)?.focus();
  }
  markColumns();
  document.getElementById("none").hidden = update.order.length > 0;
  document.getElementById("some").hidden = update.order.length === 0;
}

function figure(update) {
  for (const [id, texts] of Object.entries(update)) {
    for (const cell of rowOf(id)?.querySelectorAll("[data-figure]") ?? []) {
      const text = texts[cell.dataset.figure];
      if (cell.textContent !== text) cell.textContent = text;
    }
  }
  if (sort) arrange();
}

function timed(work) {
  return (event) => {
    const begun = performance.now();
    work(JSON.parse(event.data));
    fresh();
    document.documentElement.dataset.updateMs = (performance.now() - begun).toFixed(2);
  };
}

function drop(id) {
  rowOf(id)?.remove();
  known.delete(id);
}

function whole(update) {
  const listed = new Set(update.order.map((id) => `j-${id}`));
  for (const row of [...body.rows]) if (!listed.has(row.id)) drop(row.id.slice(2));
  rows({ ...update, gone: [] });
  figure(update.figures);
}

function rows(update) {
  update.gone.forEach(drop);
  order = update.order;
  frame(update);
  put(update.rows);
  arrange();
  choose();
}

document.getElementById("head").addEventListener("click", (event) => {
  const button = event.target.closest("[data-sort]");
  if (button) sortBy(button.dataset.sort);
});
filter.addEventListener("input", choose);
trouble.addEventListener("change", choose);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, textarea, select")) {
    event.preventDefault();
    filter.focus();
  } else if (event.key === "Escape" && event.target === filter) {
    filter.value = "";
    choose();
  }
});
markColumns();
arrange();
// Nothing has changed; the next read is N milliseconds late.
const beat = (event) => fresh(Number(event.data));
listen(() => "live", { board: timed(whole), rows: timed(rows), figures: timed(figure), beat }, { quietMs: 4000 });
