// The page of a recovery: counts the seconds of a recovery in progress.
import { dress } from "./page.js";

setInterval(() => dress(), 1000);
