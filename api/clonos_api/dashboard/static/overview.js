// The overview, updated by one stream: whole rows when they change, single cells for figures.
import { dress, fresh, listen } from "./page.js";

const body = document.getElementById("rows");
const filter = document.getElementById("filter");
const trouble = document.getElementById("trouble");
const count = document.getElementById("shown");
const known = new Map(); // job id → HTML of its row, as received
const around = {};

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

function put(rows, order) {
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
  // Move only the rows that are out of order.
  let next = body.firstElementChild;
  for (const id of order) {
    const row = rowOf(id);
    if (!row) continue;
    if (row === next) next = next.nextElementSibling;
    else body.insertBefore(row, next);
  }
}

function frame(update) {
  for (const part of ["head", "banner", "counts", "strip"]) {
    if (!(part in update) || around[part] === update[part]) continue;
    around[part] = update[part];
    const element = document.getElementById(part);
    const link = element.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    element.innerHTML = update[part];
    if (link) element.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus();
  }
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
  frame(update);
  put(update.rows, update.order);
  choose();
}

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
// Nothing has changed; the next read is N milliseconds late.
const beat = (event) => fresh(Number(event.data));
listen(() => "/live", { board: timed(whole), rows: timed(rows), figures: timed(figure), beat }, { quietMs: 4000 });
