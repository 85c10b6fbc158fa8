// Submits a job: uploads the code once, validates the specification on every change, then creates the job.
import { note, problem } from "./page.js";

const code = document.getElementById("code");
const spec = document.getElementById("spec");
const send = document.getElementById("send");
const verdict = document.getElementById("verdict");
let artifact = null;
let due = null;
let uploads = 0;
let validations = 0;

function show(title, items = [], kind = "") {
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
  const own = ++validations;
  if (!artifact) return;
  send.disabled = true;
  const response = await yaml(`api/v1/jobs/validate?artifact=${artifact}`, spec.value).catch(() => null);
  if (own !== validations) return;
  if (!response) return show("The control plane is unavailable.", [], "bad");
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    const fields = (body.errors ?? body.problems ?? []).map((error) => [error.field ?? (error.loc ?? []).join("."), error.what ?? error.msg ?? "", error.hint]);
    return show("✕ Invalid.", fields.length ? fields : [["", body.detail ?? "", body.hint]], "bad");
  }
  const { valid, problems, findings: reported } = await response.json();
  const findings = reported.map((finding) => [`${finding.file}:${finding.line}`, `${finding.call}: ${finding.why}`, finding.instead]);
  if (!valid) return show("✕ Invalid.", problems.map((error) => [error.field, error.what, error.hint]), "bad");
  send.disabled = false;
  show(findings.length ? "▲ Valid. A replay may differ at these calls:" : "● Valid.", findings, findings.length ? "weak" : "good");
}

code.addEventListener("change", async () => {
  // Text that is typed during an upload must not void the upload: uploads and validations are counted apart.
  const own = ++uploads;
  validations += 1;
  artifact = null;
  send.disabled = true;
  const [file] = code.files;
  if (!file) return;
  const form = new FormData();
  form.append("file", file);
  const response = await fetch("api/v1/artifacts", { method: "POST", body: form, headers: { "Idempotency-Key": crypto.randomUUID() } }).catch(() => null);
  if (own !== uploads) return;
  if (!response?.ok) return show("✕ The code was refused.", [["", response ? await problem(response) : "The control plane is unavailable.", ""]], "bad");
  const uploaded = await response.json();
  if (own !== uploads) return;
  artifact = uploaded.id;
  if (uploaded.main) spec.value = spec.value.replace(/^(\s+main:).*$/m, `$1 ${uploaded.main}`);
  look();
});
spec.addEventListener("input", () => { clearTimeout(due); due = setTimeout(look, 300); });
document.getElementById("submit").addEventListener("submit", async (event) => {
  event.preventDefault();
  send.disabled = true;
  const start = document.getElementById("start").checked;
  const response = await yaml(`api/v1/jobs?artifact=${artifact}&start=${start}`, spec.value).catch(() => null);
  if (response?.ok) return location.assign(`jobs/${(await response.json()).id}`);
  note(response ? await problem(response) : "The control plane is unavailable. Try again.", "bad");
  send.disabled = false;
});
