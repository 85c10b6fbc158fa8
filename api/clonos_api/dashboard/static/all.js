// A page of all hosts or all events.
import { TYPES, follow, refresh } from "./follow.js";

follow(TYPES);
setInterval(refresh, 10000); // heartbeats have no events
