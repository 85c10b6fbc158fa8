// A token becomes the browser's session: the API looks at it as at any other.
import { problem } from "./page.js";

const form = document.getElementById("sign-in");
const error = document.getElementById("sign-in-error");
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  error.hidden = true;
  let told = "The control plane does not answer. Try again.";
  try {
    const token = document.getElementById("token").value.trim();
    const response = await fetch("/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });
    if (response.ok) {
      const next = new URL(new URLSearchParams(location.search).get("next") ?? "/", location.origin);
      location.assign(next.origin === location.origin ? next : "/");
      return;
    }
    told = await problem(response);
  } catch { /* told */ }
  error.textContent = told;
  error.hidden = false;
});
