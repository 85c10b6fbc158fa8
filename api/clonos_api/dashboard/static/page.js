// Common to all pages: times in the viewer's zone, buttons that call the API, signing out.

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

// A narrow page shows the cells of a row below each other, each with the head of its column (style.css).
function labelCells(root) {
  const whole = root.closest?.("table") ?? root;
  const tables = whole.matches?.("table") ? [whole] : whole.querySelectorAll(":is(.scroll, .sr) > table:not(#board, .events)");
  for (const table of tables) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    for (const row of table.tBodies[0]?.rows ?? []) {
      if (row.cells.length !== heads.length) continue;
      heads.forEach((head, index) => { if (row.cells[index].dataset.label !== head) row.cells[index].dataset.label = head; });
    }
  }
}

export function dress(root = document) {
  const now = Date.now();
  if (root === document || root.id === "main") labelCells(root);
  for (const time of root.querySelectorAll("time")) {
    const at = Date.parse(time.dateTime);
    set(time, "since" in time.dataset ? ago(now - at, time.dataset.since === "short") : shown.format(at));
  }
}

export function note(text, kind = "") {
  const message = document.createElement("div");
  message.className = `note ${kind}`;
  message.textContent = text;
  document.getElementById("notes").append(message);
  setTimeout(() => message.remove(), kind === "bad" ? 20000 : 6000);
}

// The text of an API error: what failed, what is safe, what to do, as sentences.
export async function problem(response) {
  const body = await response.json().catch(() => ({}));
  return [body.detail ?? body.title ?? `The control plane responded with ${response.status}.`, body.kept, body.hint]
    .filter(Boolean).map((part) => part[0].toUpperCase() + part.slice(1)).join(" ");
}

export function link(state, text) {
  const element = document.getElementById("link");
  if (!element) return;
  element.dataset.state = state;
  set(element, text);
}

export function toSignIn() {
  location.assign(`signin?next=${encodeURIComponent(location.pathname + location.search)}`);
}

// When the page last received data from the store. An open connection does not prove that data arrive.
let updatedAt = Date.now();
let retriedAt = 0;
let stale = false;
let watched = null;
let staleMs = 0; // without data for this time the page is stale
const RECONNECT_MS = 25000;

export function fresh(agoMs = 0) {
  updatedAt = Math.max(updatedAt, Date.now() - agoMs);
  checkAge();
}

function checkAge() {
  const ageMs = Date.now() - updatedAt;
  const now = ageMs > staleMs;
  // In steps of five seconds: a screen reader reads each change.
  if (now) link("away", `✕ last update ${ago(Math.max(staleMs, Math.floor(ageMs / 5000) * 5000))} ago`);
  else if (stale) link("live", "● live");
  if (ageMs > RECONNECT_MS && Date.now() - retriedAt > RECONNECT_MS) {
    retriedAt = Date.now();
    document.dispatchEvent(new Event("stale"));
  }
  stale = now;
  if (stale) document.body.dataset.stale = "yes";
  else delete document.body.dataset.stale;
}

const AWAY_MS = 3000;
const HIDDEN_MS = 30000;

// An event stream that reconnects after every failure; `onOpen` is called each time. A hidden page closes its stream:
// a browser opens at most six connections to one host. `address` returns the URL to resume at. After `quietMs` without
// data the page is stale. Returns a function that opens the stream again, for an address that has changed.
export function listen(address, handlers, { onOpen, show = link, quietMs = 25000 } = {}) {
  staleMs = staleMs ? Math.min(staleMs, quietMs) : quietMs;
  let source = null;
  let away = null;
  let hiding = null;
  const lost = () => {
    away ??= setTimeout(() => show("away", "✕ disconnected"), AWAY_MS);
  };
  const close = () => {
    source?.close();
    source = null;
  };
  const open = () => {
    if (source || document.hidden) return;
    const own = (source = new EventSource(address()));
    own.onopen = () => {
      clearTimeout(away);
      away = null;
      if (!stale) show("live", "● live");
      onOpen?.();
    };
    own.onerror = async () => {
      lost();
      if (own.readyState !== EventSource.CLOSED || source !== own) return;
      source = null;
      const response = await fetch("api/v1/hosts", { cache: "no-store", signal: AbortSignal.timeout(5000) }).catch(() => null);
      if (response?.status === 401) toSignIn();
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
  watched ??= setInterval(checkAge, 500);
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
  return () => { close(); open(); };
}

// The request is fixed when the dialog opens: a page update may replace the button in the meantime.
async function ask({ dataset, textContent }) {
  const { call: request, body, field, label, ask: title, text } = { ...dataset };
  const action = textContent.trim();
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
  document.getElementById("ask-yes").textContent = action;
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue !== "yes") return null;
  const value = document.getElementById("ask-field")?.value.trim();
  const [method, url] = request.split(" ");
  const sent = body && JSON.stringify(value ? { ...JSON.parse(body), [field]: value } : JSON.parse(body));
  return { method, url, sent, action };
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// A retry has the same idempotency key, so that the request is executed once even if a response was lost.
async function send(url, options) {
  for (let left = 5; left > 0; left -= 1) {
    const response = await fetch(url, { ...options, signal: AbortSignal.timeout(15000) }).catch(() => null);
    if (response && response.status !== 503) return response;
    if (left === 1) return response;
    note("The control plane is unavailable; retrying.");
    await pause(2000);
  }
}

// Shows a note when an operation has finished.
async function awaitOperation(action, location) {
  for (let turns = 0; location && turns < 300; turns += 1) {
    await pause(1000);
    const response = await fetch(location, { cache: "no-store", signal: AbortSignal.timeout(5000) }).catch(() => null);
    const operation = response?.ok ? await response.json().catch(() => null) : null;
    if (!operation || operation.state === "IN_PROGRESS") continue;
    const done = operation.state === "COMPLETED";
    const why = operation.failure ? [operation.failure.what, operation.failure.hint].filter(Boolean).join(" ") : operation.state;
    note(`${action}: ${done ? "done." : why}`, done ? "good" : "bad");
    document.dispatchEvent(new Event("refresh"));
    return;
  }
}

async function call(button) {
  const request = await ask(button);
  if (request === null) return;
  const { method, url, sent, action } = request;
  const headers = { "Idempotency-Key": crypto.randomUUID(), ...(sent && { "Content-Type": "application/json" }) };
  const response = await send(url, { method, headers, body: sent });
  if (!response) note(`${action}: the control plane is unavailable. The request may have been executed: check before you retry.`, "bad");
  else if (!response.ok) note(`${action}: ${await problem(response)}`, "bad");
  else {
    note(`${action}: requested.`, "good");
    if (response.status === 202) awaitOperation(action, response.headers.get("Location"));
  }
  document.dispatchEvent(new Event("refresh"));
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-call]");
  if (button) call(button);
});
// `data-copy`: the id of the element whose text is copied; empty: the element before the button.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy) ?? button.previousElementSibling;
  // Browsers have a clipboard only for pages with TLS, and for pages of this machine.
  const copied = await navigator.clipboard?.writeText(source.textContent).then(() => true, () => false);
  if (copied) return note("Copied.", "good");
  source.hidden = false;
  getSelection().selectAllChildren(source);
  note("The text is selected: copy it with Ctrl+C.");
});
// Links are relative to the base, and a fragment alone would lead to the first page.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
const others = new BroadcastChannel("session");
if (document.getElementById("sign-out")) others.onmessage = toSignIn;
document.getElementById("sign-out")?.addEventListener("click", async () => {
  const response = await fetch("signout", { method: "POST" }).catch(() => null);
  if (!response?.ok) return note("You are still signed in: the control plane is unavailable. Try again.", "bad");
  others.postMessage("out");
  location.assign("signin");
});
const again = document.getElementById("again");
// Reloads only when the service responds: the browser's own error page would not retry.
async function reload() {
  const response = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" }).catch(() => null);
  if (response && response.status < 500 && response.status !== 429) location.reload();
  else setTimeout(reload, 1000 * again.dataset.again);
}
if (again) setTimeout(reload, 1000 * again.dataset.again);
// A session lasts a month from its last renewal; an open page renews it daily.
setInterval(() => fetch("session/renewal", { method: "POST" }).catch(() => {}), 3600000);
document.addEventListener("htmx:after:swap", () => dress());
setInterval(dress, 5000);
dress();
