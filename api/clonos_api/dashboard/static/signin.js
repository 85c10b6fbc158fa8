// Exchanges a token for a session cookie. The API checks the token.
import { problem } from "./page.js";

const form = document.getElementById("sign-in");
const error = document.getElementById("sign-in-error");
const requested = new URLSearchParams(location.search).get("next") ?? "/";
const next = URL.canParse(requested, location.origin) ? new URL(requested, location.origin) : null;
const proceed = () => location.replace(next?.origin === location.origin ? next : "/");

// After a link from another site the browser sends no cookie (SameSite=Strict): check from here.
fetch("/hosts", { redirect: "manual", headers: { Accept: "text/html" } }).then((response) => { if (response.ok) proceed(); }).catch(() => {});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  error.hidden = true;
  let message = "The control plane is unavailable. Try again.";
  try {
    const token = document.getElementById("token").value.trim();
    const response = await fetch("/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });
    if (response.ok) return proceed();
    message = await problem(response);
  } catch { /* unavailable */ }
  error.textContent = message;
  error.hidden = false;
});
