// The ops that tell apart where traces come from: user traffic, evaluations, training.
import { signal } from "./dom.js";

/** As the server has told them for a source. */
export const sourceOps = signal(/** @type {{source: string|null, ops: string[]}} */ ({ source: null, ops: [] }));
