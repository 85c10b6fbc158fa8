// A page about everything.
import { TYPES, follow } from "./follow.js";

follow(TYPES);
