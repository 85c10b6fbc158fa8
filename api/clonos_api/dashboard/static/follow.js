// A page that is read anew whenever something happened that it may show, and no more than once a second.
import { fresh, listen, toSignIn } from "./page.js";

const main = document.getElementById("main");
let due = null;
let busy = false;
let seen = main.dataset.seq;

// One at a time, so that no older answer takes the place of a newer one.
export async function refresh() {
  if (busy) return;
  busy = true;
  try {
    await anew();
  } finally {
    busy = false;
  }
}

async function anew() {
  const dialog = document.getElementById("ask");
  if (document.hidden || dialog.open) return;
  const how = { headers: { "HX-Request": "true" }, cache: "no-store", signal: AbortSignal.timeout(10000) };
  const response = await fetch(location.href, how).catch(() => null);
  if (response?.status === 401) return toSignIn();
  if (response && [403, 404, 410].includes(response.status)) return location.reload(); // it says why
  // What cannot be had now is had the next time; until then the page stays as it is, and says since when.
  const text = response?.ok ? await response.text().catch(() => null) : null;
  if (text === null || dialog.open) return;
  await htmx.swap({ text, target: main, swap: "innerMorph", sourceElement: main });
  fresh();
  document.dispatchEvent(new Event("refreshed"));
}

export function soon() {
  due ??= setTimeout(() => { due = null; refresh(); }, 1000);
}

export function follow(types, job) {
  const heard = (event) => {
    if (event.lastEventId) seen = event.lastEventId;
    soon();
  };
  const place = () => `/api/v1/events?${new URLSearchParams({ after: seen, ...(job && { job }) })}`;
  listen(place, Object.fromEntries([...types, "gap"].map((type) => [type, heard])), { begun: soon });
}

document.addEventListener("refresh", soon);
document.addEventListener("visibilitychange", soon);

// All that the control plane tells of (docs/control-plane.md).
export const TYPES = [
  "agent.back", "agent.drained", "agent.lost", "agent.registered", "agent.removed", "agent.undrained",
  "artifact.created", "artifact.deleted", "job.created", "job.deleted", "job.desired", "job.exception",
  "job.generation", "job.move.began", "job.move.ended", "job.recovery.began", "job.recovery.ended", "job.state",
  "job.updated", "operation.began", "operation.ended", "run.created", "run.state", "savepoint.created",
  "savepoint.completed", "savepoint.deleted", "savepoint.deleting", "savepoint.failed", "standby.state", "token.created", "token.revoked",
];
