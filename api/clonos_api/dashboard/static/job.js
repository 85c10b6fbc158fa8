// A job's page: its events, and its figures every two seconds.
import { dress } from "./page.js";
import { TYPES, follow, refresh } from "./follow.js";

follow(TYPES, document.getElementById("job").dataset.job);
document.addEventListener("refreshed", () => dress());
setInterval(refresh, 2000);
