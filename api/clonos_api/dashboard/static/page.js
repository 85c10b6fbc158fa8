// What every page does: times in the viewer's zone, buttons that call the API, signing out.

const shown = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

export function ago(ms) {
  const seconds = Math.max(0, ms / 1000);
  for (const [index, [unit, size]] of UNITS.entries()) {
    if (seconds < size && unit !== "s") continue;
    const whole = Math.floor(seconds / size);
    const next = UNITS[index + 1];
    const rest = next && unit !== "min" ? Math.floor((seconds % size) / next[1]) : 0;
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
    set(time, "since" in time.dataset ? ago(now - at) : shown.format(at));
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

// A stream of the control plane; says whether it is there, and notices when the browser is signed out.
export function listen(url, handlers) {
  let source;
  const open = () => {
    source = new EventSource(url);
    source.onopen = () => link("live", "● live");
    source.onerror = async () => {
      link("away", "✕ no word from the control plane");
      if (source.readyState !== EventSource.CLOSED) return;
      const answer = await fetch("/api/v1/hosts", { cache: "no-store" }).catch(() => null);
      if (answer?.status === 401) location.assign(`/signin?next=${encodeURIComponent(location.pathname + location.search)}`);
      else setTimeout(open, 1000);
    };
    for (const [type, handle] of Object.entries(handlers)) source.addEventListener(type, handle);
  };
  open();
  addEventListener("pagehide", () => source.close());
}

async function ask(button) {
  const dialog = document.getElementById("ask");
  document.getElementById("ask-title").textContent = button.dataset.ask;
  document.getElementById("ask-text").textContent = button.dataset.text ?? "";
  const fields = document.getElementById("ask-fields");
  fields.replaceChildren();
  if (button.dataset.field) {
    const label = document.createElement("label");
    const input = document.createElement("input");
    input.id = "ask-field";
    label.append(`${button.dataset.label} `, input);
    fields.append(label);
  }
  document.getElementById("ask-yes").textContent = button.textContent.trim();
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue !== "yes") return null;
  const body = button.dataset.body ? JSON.parse(button.dataset.body) : undefined;
  const given = document.getElementById("ask-field")?.value.trim();
  return given ? { ...body, [button.dataset.field]: given } : body ?? {};
}

async function call(button) {
  const body = await ask(button);
  if (body === null) return;
  const [method, url] = button.dataset.call.split(" ");
  button.disabled = true;
  try {
    const sent = button.dataset.body ? JSON.stringify(body) : undefined;
    const headers = { "Idempotency-Key": crypto.randomUUID(), ...(sent && { "Content-Type": "application/json" }) };
    const response = await fetch(url, { method, headers, body: sent });
    if (response.ok) note(`${button.textContent.trim()}: asked for.`, "good");
    else note(await problem(response), "bad");
    document.dispatchEvent(new Event("refresh"));
  } catch {
    note("The control plane does not answer; nothing was changed as far as is known. Try again.", "bad");
  } finally {
    button.disabled = false;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-call]");
  if (button) call(button);
});
document.getElementById("sign-out")?.addEventListener("click", async () => {
  await fetch("/session", { method: "DELETE" });
  location.assign("/signin");
});
document.addEventListener("htmx:after:swap", () => dress());
setInterval(dress, 5000);
dress();
