// Fetches the content of a page again: at most once a second after events.
import { dress, fresh, listen, toSignIn } from "./page.js";

const main = document.getElementById("main");
let due = null;
let busy = false;
let seen = main.dataset.seq;

// One request at a time: an older response must not replace a newer one.
export async function refresh() {
  if (busy) return;
  busy = true;
  try {
    await reload();
  } finally {
    busy = false;
  }
}

async function reload() {
  const dialog = document.getElementById("ask");
  if (document.hidden || dialog.open) return;
  const options = { headers: { "HX-Request": "true" }, cache: "no-store", signal: AbortSignal.timeout(10000) };
  const response = await fetch(location.href, options).catch(() => null);
  if (response?.status === 401) return toSignIn();
  if (response && [403, 404, 410].includes(response.status)) return location.reload(); // the error page has the reason
  // On failure the page stays as it is and shows its age; the next event or timer retries.
  const text = response?.ok ? await response.text().catch(() => null) : null;
  if (text === null || dialog.open) return;
  const unfolded = [...main.querySelectorAll("details[open]")]; // the user opened them
  await htmx.swap({ text, target: main, swap: "innerMorph", sourceElement: main });
  for (const details of unfolded) details.open = true;
  dress(main);
  fresh();
}

export function soon() {
  due ??= setTimeout(() => { due = null; refresh(); }, 1000);
}

export function follow(types) {
  const received = (event) => {
    if (event.lastEventId) seen = event.lastEventId;
    soon();
  };
  const handlers = Object.fromEntries([...types, "gap"].map((type) => [type, received]));
  listen(() => `api/v1/events?after=${seen}`, handlers, { onOpen: soon });
}

document.addEventListener("refresh", soon);
document.addEventListener("visibilitychange", soon);

// All event types of the control plane (docs/control-plane.md).
export const TYPES = [
  "host.back", "host.drained", "host.lost", "host.registered", "host.removed", "host.undrained",
  "artifact.created", "artifact.deleted", "cluster.created", "cluster.deleted", "cluster.state", "cluster.updated", "job.created", "job.deleted", "job.desired", "job.exception",
  "job.generation", "job.move.began", "job.move.ended", "job.recovery.began", "job.recovery.ended", "job.state",
  "job.updated", "operation.began", "operation.ended", "run.created", "run.state", "savepoint.created",
  "savepoint.completed", "savepoint.deleted", "savepoint.deleting", "savepoint.failed", "standby.state", "token.created", "token.revoked",
];
