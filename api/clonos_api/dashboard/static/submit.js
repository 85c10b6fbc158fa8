// Submitting: the code is uploaded once, then the API validates as one types, and creates what was validated.
import { note, problem } from "./page.js";

const code = document.getElementById("code");
const spec = document.getElementById("spec");
const send = document.getElementById("send");
const verdict = document.getElementById("verdict");
let artifact = null;
let due = null;
let turn = 0;

function say(title, items = [], kind = "") {
  const heading = document.createElement("h2");
  heading.textContent = title;
  const list = document.createElement("ul");
  for (const [where, what, hint] of items) {
    const item = document.createElement("li");
    const strong = document.createElement("strong");
    strong.textContent = where;
    item.append(strong, ` ${what}`);
    if (hint) {
      const small = document.createElement("div");
      small.className = "hint";
      small.textContent = hint;
      item.append(small);
    }
    list.append(item);
  }
  heading.className = `mark ${kind}`;
  verdict.replaceChildren(heading, list);
}

const yaml = (path, body) => fetch(path, { method: "POST", body, headers: { "Content-Type": "application/yaml", "Idempotency-Key": crypto.randomUUID() } });

async function look() {
  const mine = ++turn;
  if (!artifact) return;
  send.disabled = true;
  const response = await yaml(`/api/v1/jobs/validate?artifact=${artifact}`, spec.value).catch(() => null);
  if (mine !== turn) return;
  if (!response) return say("The control plane does not answer.", [], "bad");
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    const fields = (told.errors ?? told.problems ?? []).map((one) => [one.field ?? (one.loc ?? []).join("."), one.what ?? one.msg ?? "", one.hint]);
    return say("✕ It would be refused.", fields.length ? fields : [["", told.detail ?? "", told.hint]], "bad");
  }
  const told = await response.json();
  const found = told.findings.map((one) => [`${one.file}:${one.line}`, `${one.call}: ${one.why}`, one.instead]);
  if (!told.valid) return say("✕ It would be refused.", told.problems.map((one) => [one.field, one.what, one.hint]), "bad");
  send.disabled = false;
  say(found.length ? "▲ It can be submitted; a replay may compute something else here:" : "● It can be submitted.", found, found.length ? "weak" : "good");
}

code.addEventListener("change", async () => {
  const mine = ++turn;
  artifact = null;
  send.disabled = true;
  const [file] = code.files;
  if (!file) return;
  const form = new FormData();
  form.append("file", file);
  const response = await fetch("/api/v1/artifacts", { method: "POST", body: form, headers: { "Idempotency-Key": crypto.randomUUID() } }).catch(() => null);
  if (mine !== turn) return;
  if (!response?.ok) return say("✕ The code was not taken.", [["", response ? await problem(response) : "The control plane does not answer.", ""]], "bad");
  const told = await response.json();
  if (mine !== turn) return;
  artifact = told.id;
  if (told.main) spec.value = spec.value.replace(/^(\s+main:).*$/m, `$1 ${told.main}`);
  look();
});
spec.addEventListener("input", () => { clearTimeout(due); due = setTimeout(look, 300); });
document.getElementById("submit").addEventListener("submit", async (event) => {
  event.preventDefault();
  send.disabled = true;
  const start = document.getElementById("start").checked;
  const response = await yaml(`/api/v1/jobs?artifact=${artifact}&start=${start}`, spec.value).catch(() => null);
  if (response?.ok) return location.assign(`/jobs/${(await response.json()).id}`);
  note(response ? await problem(response) : "The control plane does not answer; try again.", "bad");
  send.disabled = false;
});
