// The page of a recovery: copies the post-mortem, and counts the seconds of a recovery in progress.
import { dress, note } from "./page.js";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const text = document.getElementById(button.dataset.copy);
  // Browsers have a clipboard only for pages with TLS, and for those of this machine.
  const copied = await navigator.clipboard?.writeText(text.textContent).then(() => true, () => false);
  if (copied) return note("The post-mortem is copied.", "good");
  text.hidden = false;
  getSelection().selectAllChildren(text);
  note("The post-mortem is selected: copy it with Ctrl+C.");
});
setInterval(() => dress(), 1000);
