// The models that can be asked here, those that are trained here with their checkpoints, and stored Model objects.
import { computed, h } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { int } from "../lib/format.js";
import { tabs } from "../lib/panels.js";
import { header, loaded, title } from "../lib/parts.js";
import { projectId } from "../lib/router.js";
import { loadServed, loadTrained } from "./models_data.js";
import { objectsView } from "./models_objects.js";
import { servedView } from "./models_served.js";
import { trainedView } from "./models_trained.js";

/** The page of models. */
export default function Models() {
  title("Models");
  const served = resource(() => projectId(), loadServed);
  const trained = resource(() => projectId(), loadTrained);
  const objects = resource(() => [
    "/objs/query",
    {
      filter: { base_object_classes: ["Model"], latest_only: true },
      metadata_only: true,
      include_tags_and_aliases: true,
      limit: 1000,
      sort_by: [{ field: "created_at", direction: "desc" }],
    },
  ]);
  const reload = () => {
    served.reload();
    trained.reload();
  };
  const count = (text, list) => [text, () => (list()?.length ? h("span.tabcount", int(list().length)) : null)];
  const own = computed(() => trained.data.value?.models);
  return h(
    "div.page",
    header({ title: "Models" }),
    h(
      "div.scroll",
      { tabindex: 0, role: "region", "aria-label": "Models" },
      tabs(
        "Models",
        [
          ["served", count("Served", () => served.data.value?.models), () => h("div.modelbox", loaded(served, servedView))],
          [
            "trained",
            count("Trained here", () => own.value),
            () =>
              h(
                "div.modelbox",
                loaded(trained, (found) => trainedView(found, reload)),
              ),
          ],
          [
            "objects",
            count("Model objects", () => objects.data.value?.objs),
            () =>
              h(
                "div.modelbox",
                loaded(objects, ({ objs }) => objectsView(objs)),
              ),
          ],
        ],
        "view",
      ),
    ),
  );
}
