// Choosing a model: what this server serves, and the models that the project has stored.
import { parseRef } from "./format.js";
import { h } from "./dom.js";
import { get, postProject } from "./data.js";
import { modelName, refOf } from "./runs.js";

let count = 0;

/** Names of models that answer chats: [value, text], served ones first. */
export async function chatModels() {
  const [served, stored] = await Promise.all([
    get("/v1/models").catch(() => ({ data: [] })),
    postProject("/objs/query", {
      filter: { leaf_object_classes: ["LLMStructuredCompletionModel"], latest_only: true },
      metadata_only: true,
    }).catch(() => ({ objs: [] })),
  ]);
  return [
    ...served.data.map(({ id }) => [id, "served here"]),
    ...stored.objs.map((object) => [refOf(object), `stored: ${object.object_id}`]),
  ];
}

const OFFERED = 5;

/** A field for the name of a model that suggests those that are known, a few of them to be pressed; `value` preset. */
export function modelField(attributes = {}) {
  const list = h("datalist", { id: `models-${++count}` });
  chatModels().then((models) => {
    list.append(...models.map(([value, text]) => h("option", { value, label: text })));
    offers.append(...models.slice(0, OFFERED).map(([value]) => offer(value, input)));
    const isLeft = !input.value && document.activeElement !== input;
    if (isLeft && models.length && attributes.required) input.value = models[0][0];
  });
  const input = h("input", {
    type: "text",
    list: list.id,
    autocomplete: "off",
    "aria-label": "Model",
    placeholder: "a served model, provider/model, or a ref",
    ...attributes,
  });
  const offers = h("span.modeloffers");
  return { input, list: [list, offers] };
}

/** A button that fills the field. Browsers show of a list of suggestions only those that look like what stands there. */
function offer(value, input) {
  const shown = modelName(parseRef(value)?.name ?? value.split("/").at(-1));
  const take = () => {
    input.value = value;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  };
  return h("button.chip", { type: "button", title: value, onclick: take }, shown);
}
