// The overview, brought up to date by one stream: whole rows when they change, single cells for figures.
import { dress, listen } from "./page.js";

const body = document.getElementById("rows");
const filter = document.getElementById("filter");
const trouble = document.getElementById("trouble");
const count = document.getElementById("shown");
let hosts = null;

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

function made(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

function put(rows, order) {
  for (const [id, html] of Object.entries(rows)) {
    const old = document.getElementById(`j-${id}`);
    const row = made(html);
    dress(row);
    if (old) old.replaceWith(row);
    else body.append(row);
  }
  // Only what is out of place is moved.
  let next = body.firstElementChild;
  for (const id of order) {
    const row = document.getElementById(`j-${id}`);
    if (!row) continue;
    if (row === next) next = next.nextElementSibling;
    else body.insertBefore(row, next);
  }
}

function summary(html) {
  const element = document.getElementById("summary");
  if (element.innerHTML.trim() !== html.trim()) element.innerHTML = html;
}

function whole(event) {
  const told = JSON.parse(event.data);
  const columns = JSON.stringify(told.hosts);
  const empty = body.rows.length === 0;
  // Other columns, or the first job ever: the page is drawn anew.
  if ((hosts !== null && hosts !== columns) || empty !== (told.order.length === 0)) return location.reload();
  hosts = columns;
  const kept = new Set(told.order.map((id) => `j-${id}`));
  for (const row of [...body.rows]) if (!kept.has(row.id)) row.remove();
  put(told.rows, told.order);
  summary(told.summary);
  choose();
}

function rows(event) {
  const told = JSON.parse(event.data);
  for (const id of told.gone) document.getElementById(`j-${id}`)?.remove();
  if (body.rows.length === 0 && told.order.length) return location.reload();
  put(told.rows, told.order);
  summary(told.summary);
  choose();
}

function figures(event) {
  const begun = performance.now();
  for (const [id, texts] of Object.entries(JSON.parse(event.data))) {
    const row = document.getElementById(`j-${id}`);
    if (!row) continue;
    for (const cell of row.querySelectorAll("[data-figure]")) {
      const text = texts[cell.dataset.figure];
      if (cell.firstChild?.data !== text) cell.textContent = text;
    }
  }
  document.documentElement.dataset.updateMs = (performance.now() - begun).toFixed(2);
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
listen("/live", { board: whole, rows, figures });
