// A page that is read anew whenever something happened that it may show, and no more than once a second.
import { listen } from "./page.js";

let due = null;

export async function refresh() {
  if (document.hidden || document.getElementById("ask").open) return;
  await htmx.ajax("GET", location.href, { target: "#main", swap: "innerMorph" });
  document.dispatchEvent(new Event("refreshed"));
}

export function soon() {
  due ??= setTimeout(() => { due = null; refresh(); }, 1000);
}

export function follow(types, job) {
  const query = new URLSearchParams(job ? { job } : {});
  const handlers = Object.fromEntries(types.map((type) => [type, soon]));
  listen(`/api/v1/events?${query}`, { ...handlers, gap: soon });
}

document.addEventListener("refresh", soon);
document.addEventListener("visibilitychange", soon);

// All that the control plane tells of (docs/control-plane.md).
export const TYPES = [
  "agent.back", "agent.lost", "agent.registered", "agent.removed", "artifact.created", "artifact.deleted", "job.created",
  "job.deleted", "job.desired", "job.exception", "job.generation", "job.move.began", "job.move.ended",
  "job.recovery.began", "job.recovery.ended", "job.state", "job.updated", "operation.began", "operation.ended",
  "run.created", "run.state", "standby.state", "token.created", "token.revoked",
];
