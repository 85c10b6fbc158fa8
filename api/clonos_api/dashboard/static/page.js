// What every page does: times in the viewer's zone, buttons that call the API, signing out.

const shown = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

export function ago(ms, short = false) {
  const seconds = Math.max(0, ms / 1000);
  for (const [index, [unit, size]] of UNITS.entries()) {
    if (seconds < size && unit !== "s") continue;
    const whole = Math.floor(seconds / size);
    const next = UNITS[index + 1];
    const rest = next && unit !== "min" && !short ? Math.floor((seconds % size) / next[1]) : 0;
    return `${whole} ${unit}${rest ? ` ${rest} ${next[0]}` : ""}`;
  }
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function dress(root = document) {
  const now = Date.now();
  for (const time of root.querySelectorAll("time")) {
    const at = Date.parse(time.dateTime);
    set(time, "since" in time.dataset ? ago(now - at, time.dataset.since === "short") : shown.format(at));
  }
}

export function note(text, kind = "") {
  const made = document.createElement("div");
  made.className = `note ${kind}`;
  made.textContent = text;
  document.getElementById("notes").append(made);
  setTimeout(() => made.remove(), kind === "bad" ? 20000 : 6000);
}

// The API's word on what went wrong: what, what was kept safe, what to do.
export async function problem(response) {
  const told = await response.json().catch(() => ({}));
  return [told.detail ?? told.title ?? `The control plane answered ${response.status}.`, told.kept, told.hint]
    .filter(Boolean).join(" ");
}

export function link(state, text) {
  const element = document.getElementById("link");
  if (!element) return;
  element.dataset.state = state;
  set(element, text);
}

export function toSignIn() {
  location.assign(`/signin?next=${encodeURIComponent(location.pathname + location.search)}`);
}

const AWAY_MS = 5000;
const HIDDEN_MS = 30000;

// A stream of the control plane that comes back whatever happens; `begun` is told each time that it does. A page that
// nobody sees gives its stream back: a browser has six of them for one host. `place` gives the address to go on at.
export function listen(place, handlers, { begun, tell = link } = {}) {
  let source = null;
  let away = null;
  let hiding = null;
  const lost = () => {
    away ??= setTimeout(() => tell("away", "✕ no word from the control plane"), AWAY_MS);
  };
  const close = () => {
    source?.close();
    source = null;
  };
  const open = () => {
    if (source || document.hidden) return;
    const own = (source = new EventSource(place()));
    own.onopen = () => {
      clearTimeout(away);
      away = null;
      tell("live", "● live");
      begun?.();
    };
    own.onerror = async () => {
      lost();
      if (own.readyState !== EventSource.CLOSED || source !== own) return;
      source = null;
      const answer = await fetch("/api/v1/hosts", { cache: "no-store" }).catch(() => null);
      if (answer?.status === 401) toSignIn();
      else setTimeout(open, 1000);
    };
    for (const [type, handle] of Object.entries(handlers)) own.addEventListener(type, handle);
  };
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(close, HIDDEN_MS);
    else open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}

// What is asked is what is sent: a page may be brought up to date, and its buttons with it, while somebody reads.
async function ask({ dataset, textContent }) {
  const { call: what, body, field, label, ask: title, text } = { ...dataset };
  const word = textContent.trim();
  const dialog = document.getElementById("ask");
  document.getElementById("ask-title").textContent = title;
  document.getElementById("ask-text").textContent = text ?? "";
  const fields = document.getElementById("ask-fields");
  fields.replaceChildren();
  if (field) {
    const element = document.createElement("label");
    const input = document.createElement("input");
    input.id = "ask-field";
    element.append(`${label} `, input);
    fields.append(element);
  }
  document.getElementById("ask-yes").textContent = word;
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue !== "yes") return null;
  const given = document.getElementById("ask-field")?.value.trim();
  const [method, url] = what.split(" ");
  const sent = body && JSON.stringify(given ? { ...JSON.parse(body), [field]: given } : JSON.parse(body));
  return { method, url, sent, word };
}

async function call(button) {
  const asked = await ask(button);
  if (asked === null) return;
  const { method, url, sent, word } = asked;
  try {
    const headers = { "Idempotency-Key": crypto.randomUUID(), ...(sent && { "Content-Type": "application/json" }) };
    const response = await fetch(url, { method, headers, body: sent });
    if (response.ok) note(`${word}: asked for.`, "good");
    else note(await problem(response), "bad");
    document.dispatchEvent(new Event("refresh"));
  } catch {
    note("The control plane does not answer; nothing was changed as far as is known. Try again.", "bad");
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-call]");
  if (button) call(button);
});
const others = new BroadcastChannel("session");
if (document.getElementById("sign-out")) others.onmessage = toSignIn;
document.getElementById("sign-out")?.addEventListener("click", async () => {
  const response = await fetch("/signout", { method: "POST" }).catch(() => null);
  if (!response?.ok) return note("You are still signed in: the control plane does not answer. Try again.", "bad");
  others.postMessage("out");
  location.assign("/signin");
});
const again = document.getElementById("again");
if (again) setTimeout(() => location.reload(), 1000 * again.dataset.again);
document.addEventListener("htmx:after:swap", () => dress());
setInterval(dress, 5000);
dress();
