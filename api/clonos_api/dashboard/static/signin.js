// A token becomes the browser's session: the API looks at it as at any other.
import { problem } from "./page.js";

const form = document.getElementById("sign-in");
const error = document.getElementById("sign-in-error");
const asked = new URLSearchParams(location.search).get("next") ?? "/";
const next = URL.canParse(asked, location.origin) ? new URL(asked, location.origin) : null;
const goOn = () => location.replace(next?.origin === location.origin ? next : "/");

// Who followed a link from elsewhere is signed in, but the browser did not say so (SameSite=Strict): ask from here.
fetch("/hosts", { redirect: "manual", headers: { Accept: "text/html" } }).then((answer) => { if (answer.ok) goOn(); }).catch(() => {});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  error.hidden = true;
  let told = "The control plane does not answer. Try again.";
  try {
    const token = document.getElementById("token").value.trim();
    const response = await fetch("/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });
    if (response.ok) return goOn();
    told = await problem(response);
  } catch { /* told */ }
  error.textContent = told;
  error.hidden = false;
});
