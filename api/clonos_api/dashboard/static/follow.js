// A page that is read anew whenever something happened that it may show, and no more than once a second.
import { listen, toSignIn } from "./page.js";

const main = document.getElementById("main");
let due = null;
let seen = main.dataset.seq;

export async function refresh() {
  const dialog = document.getElementById("ask");
  if (document.hidden || dialog.open) return;
  const response = await fetch(location.href, { headers: { "HX-Request": "true" }, cache: "no-store" }).catch(() => null);
  if (response?.status === 401) return toSignIn();
  // What cannot be had now is had the next time; until then the page stays as it is.
  if (!response?.ok || dialog.open) return;
  await htmx.swap({ text: await response.text(), target: main, swap: "innerMorph", sourceElement: main });
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
