// A job's page. Its lead line lives from a stream; the rest is fetched again after events of the job, and where it shows
// epochs, some seconds after new ones.
import { dress, fresh, listen } from "./page.js";
import { refresh, soon } from "./follow.js";

const job = document.getElementById("job").dataset.job;
const lead = document.getElementById("lead");
const EPOCHS_MS = 10000;
let figures = [];
let epochs = null;
let due = null;

function show(update) {
  if ("html" in update) lead.innerHTML = update.html;
  figures = update.figures ?? figures;
  for (const element of lead.querySelectorAll("[data-figure]")) {
    const text = figures[element.dataset.figure];
    if (element.textContent !== text) element.textContent = text;
  }
  dress(lead);
  if (!("epochs" in update)) return;
  const newest = String(update.epochs);
  if (epochs !== null && epochs !== newest && document.querySelector("[data-follows=epochs]")) {
    due ??= setTimeout(() => { due = null; refresh(); }, EPOCHS_MS);
  }
  epochs = newest;
}

listen(() => `jobs/${job}/live`, {
  lead: (event) => { show(JSON.parse(event.data)); fresh(); },
  changed: () => { fresh(); soon(); },
  beat: (event) => fresh(Number(event.data)),
}, { onOpen: soon, quietMs: 4000 });
setInterval(() => dress(lead), 1000); // the seconds without output
