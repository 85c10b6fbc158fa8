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

// When a page last had something from the store. A connection that looks open says nothing of that.
let heard = Date.now();
let tried = 0;
let stale = false;
let watched = null;
const STALE_MS = 25000;

export function fresh(agoMs = 0) {
  heard = Math.max(heard, Date.now() - agoMs);
  look();
}

function look() {
  const now = Date.now() - heard > STALE_MS;
  if (now) link("away", `✕ as of ${new Intl.DateTimeFormat(undefined, { timeStyle: "medium" }).format(heard)}`);
  else if (stale) link("live", "● live");
  if (now && Date.now() - tried > STALE_MS) {
    tried = Date.now();
    document.dispatchEvent(new Event("stale"));
  }
  stale = now;
  if (stale) document.body.dataset.stale = "yes";
  else delete document.body.dataset.stale;
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
      if (!stale) tell("live", "● live");
      begun?.();
    };
    own.onerror = async () => {
      lost();
      if (own.readyState !== EventSource.CLOSED || source !== own) return;
      source = null;
      const answer = await fetch("/api/v1/hosts", { cache: "no-store", signal: AbortSignal.timeout(5000) }).catch(() => null);
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
  document.addEventListener("stale", () => { close(); open(); });
  watched ??= setInterval(look, 1000);
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

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// Asked again with the same key, it is done once, whichever answer was lost.
async function asking(url, how) {
  for (let left = 5; left > 0; left -= 1) {
    const response = await fetch(url, { ...how, signal: AbortSignal.timeout(15000) }).catch(() => null);
    if (response && response.status !== 503) return response;
    if (left === 1) return response;
    note("The control plane does not answer; asking again.");
    await pause(2000);
  }
}

// What takes a while is told again when it has ended.
async function ending(word, place) {
  for (let turns = 0; place && turns < 300; turns += 1) {
    await pause(1000);
    const response = await fetch(place, { cache: "no-store", signal: AbortSignal.timeout(5000) }).catch(() => null);
    const told = response?.ok ? await response.json().catch(() => null) : null;
    if (!told || told.state === "IN_PROGRESS") continue;
    const why = told.failure ? [told.failure.what, told.failure.hint].filter(Boolean).join(" ") : told.state;
    note(`${word}: ${told.state === "COMPLETED" ? "done." : why}`, told.state === "COMPLETED" ? "good" : "bad");
    document.dispatchEvent(new Event("refresh"));
    return;
  }
}

async function call(button) {
  const asked = await ask(button);
  if (asked === null) return;
  const { method, url, sent, word } = asked;
  const headers = { "Idempotency-Key": crypto.randomUUID(), ...(sent && { "Content-Type": "application/json" }) };
  const response = await asking(url, { method, headers, body: sent });
  if (!response) note(`${word}: the control plane does not answer. It may have been done: look before you ask again.`, "bad");
  else if (!response.ok) note(`${word}: ${await problem(response)}`, "bad");
  else {
    note(`${word}: asked for.`, "good");
    if (response.status === 202) ending(word, response.headers.get("Location"));
  }
  document.dispatchEvent(new Event("refresh"));
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
// Loaded anew only once there is something to load: a browser's own page about a dead service would stay for good.
async function reload() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" }).catch(() => null);
  if (answer && answer.status < 500 && answer.status !== 429) location.reload();
  else setTimeout(reload, 1000 * again.dataset.again);
}
if (again) setTimeout(reload, 1000 * again.dataset.again);
// A session ends a month after this was said last; what hangs on a wall goes on.
setInterval(() => fetch("/session/renewal", { method: "POST" }).catch(() => {}), 86400000);
document.addEventListener("htmx:after:swap", () => dress());
setInterval(dress, 5000);
dress();
