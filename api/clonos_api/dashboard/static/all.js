// A page of all hosts, clusters or events.
import { TYPES, follow, refresh } from "./follow.js";

follow(TYPES);
setInterval(refresh, 10000); // heartbeats have no events
