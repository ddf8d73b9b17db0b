// What the page of models asks the server for.
import { get } from "../lib/data.js";

const DAYS = 30;

/** What is served, with what is known of each model. */
export async function loadServed(project, abort) {
  const since = new Date(Date.now() - DAYS * 86_400_000).toISOString().slice(0, 10);
  const usage = new URLSearchParams({ project, start: since, group_by: "model" });
  const [models, engines, used] = await Promise.all([
    get("/v1/models", abort),
    get("/v1/engine", abort).catch(keepAbort),
    get(`/v1/usage?${usage}`, abort).catch(keepAbort),
  ]);
  const names = new URLSearchParams([["project", project], ...models.data.map(({ id }) => ["model", id])]);
  const prices = await get(`/_ui/api/prices?${names}`, abort);
  return { models: models.data, engines: engines?.data ?? [], usage: used?.data ?? [], prices: prices.models };
}

/** The models that are trained in the project, and whether training is possible. */
export async function loadTrained(project, abort) {
  const [entity, name] = project.split("/");
  const wanted = new URLSearchParams({ entity, project: name, limit: "100", order: "desc" });
  const [models, check] = await Promise.all([
    get(`/v1/preview/models?${wanted}`, abort),
    get("/v1/system-check", abort).catch(keepAbort),
  ]);
  return { models: models.data, check };
}

/** What a page can do without is left out; a request that was given up stays given up. */
function keepAbort(error) {
  if (error.name === "AbortError") throw error;
  return null;
}

/** The address under which a trained model is asked, at a step or by its current one. */
export const addressOf = (model, step = null) =>
  `wandb-artifact:///${model.entity}/${model.project}/${model.name}${step === null ? "" : `:step${step}`}`;

/** The checkpoints of a trained model, newest first: {data, has_more}. */
export const checkpointsOf = (id, abort) =>
  get(`/v1/preview/models/${encodeURIComponent(id)}/checkpoints?limit=100&order=desc`, abort);
