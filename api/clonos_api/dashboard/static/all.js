// A page about everything.
import { TYPES, follow, refresh } from "./follow.js";

follow(TYPES);
setInterval(refresh, 10000); // what no event tells, such as when a host was heard of
