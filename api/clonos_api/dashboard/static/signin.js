// Exchanges a token, or the code of a link, for a session cookie. The API checks both.
import { problem } from "./page.js";

const byToken = document.getElementById("sign-in");
const byLink = document.getElementById("by-link");
const requested = new URLSearchParams(location.search).get("next") ?? "./";
const next = URL.canParse(requested, document.baseURI) ? new URL(requested, document.baseURI) : null;
const proceed = () => location.replace(next?.origin === location.origin ? next : "./");

// The code leaves the address and the history at once.
const code = new URLSearchParams(location.hash.slice(1)).get("code");
if (code) history.replaceState(null, "", location.pathname + location.search);

// After a link from another site the browser sends no cookie (SameSite=Strict): check from here.
fetch("hosts", { redirect: "manual", headers: { Accept: "text/html" } }).then((response) => { if (response.ok) proceed(); }).catch(() => {});

// Whether the browser is signed in; if not, `error` shows why.
async function exchange(error, path, request) {
  error.hidden = true;
  let message = "The control plane is unavailable. Try again.";
  try {
    const response = await fetch(path, { method: "POST", ...request });
    if (response.ok) {
      proceed();
      return true;
    }
    message = await problem(response);
  } catch { /* unavailable */ }
  error.textContent = message;
  error.hidden = false;
  return false;
}

byToken.addEventListener("submit", (event) => {
  event.preventDefault();
  const token = document.getElementById("token").value.trim();
  exchange(document.getElementById("sign-in-error"), "session", { headers: { Authorization: `Bearer ${token}` } });
});

if (code) {
  byLink.hidden = false;
  byToken.hidden = true;
  byLink.querySelector("button").focus();
}

byLink.addEventListener("submit", async (event) => {
  event.preventDefault();
  const signedIn = await exchange(document.getElementById("by-link-error"), "session/link", {
    headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }),
  });
  byToken.hidden = signedIn;
});
