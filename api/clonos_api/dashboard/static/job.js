// A job's page: its events, its figures every two seconds, its log.
import { dress, listen } from "./page.js";
import { TYPES, follow, refresh } from "./follow.js";

const job = document.getElementById("job").dataset.job;
const LONGEST_LOG = 5000;

function lines() {
  if (!document.getElementById("lines")) return;
  let after = null;
  const append = (event) => {
    const log = document.getElementById("lines");
    if (event.lastEventId) after = event.lastEventId;
    const line = document.createElement("div");
    line.textContent = event.data;
    log.append(line);
    while (log.childElementCount > LONGEST_LOG) log.firstElementChild.remove();
    if (document.getElementById("follow").checked) log.scrollTop = log.scrollHeight;
  };
  const from = () => new URLSearchParams({ follow: true, ...(after ? { after } : { tail: 500 }) });
  const show = (state) => { document.getElementById("lines").dataset.state = state; };
  listen(() => `/api/v1/jobs/${job}/logs?${from()}`, { message: append }, { show });
}

follow(TYPES, job);
document.addEventListener("refreshed", () => dress());
setInterval(refresh, 2000);
lines();
