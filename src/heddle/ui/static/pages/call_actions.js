// What can be done with a call: copied, named, deleted, opened in the playground, added to a dataset or a queue.
import { h } from "../lib/dom.js";
import { postProject } from "../lib/data.js";
import { attempt, confirm, form, menu, toast } from "../lib/dialog.js";
import { button, icon } from "../lib/parts.js";
import { link, path, projectId } from "../lib/router.js";
import { callName, kindOf } from "../lib/spans.js";

/** The buttons of a call: `bar` links to other pages, `icons` copies and changes; `told` is called with "renamed" and "deleted". */
export function callActions(call, told = (_what) => {}) {
  return {
    get bar() {
      return h(
        "div.callbar",
        kindOf(call) === "llm" || call.inputs?.messages
          ? h("a.button", { href: link("/playground", { call: call.id }) }, icon("play"), "Open in playground")
          : null,
        button("Add to dataset", async () => (await import("../lib/addtodataset.js")).addToDataset([call.id]), {
          iconName: "data",
          needs: "write",
        }),
        button("Add to queue", async () => (await import("../lib/addtoqueue.js")).addToQueue([call.id]), {
          iconName: "annotate",
          needs: "write",
        }),
      );
    },
    get icons() {
      return [
        button(null, () => copy(address(call), "Link copied"), { iconName: "link", label: "Copy link" }),
        menu(null, () => items(call, told), { label: "More" }),
      ];
    },
  };
}

function items(call, told) {
  return [
    ["Copy id", () => copy(call.id, "Id copied"), { iconName: "copy" }],
    ["Copy as JSON", () => copy(JSON.stringify(call, null, 2), "JSON copied"), { iconName: "copy" }],
    ["Copy Python", () => copy(python(call), "Python copied"), { iconName: "code" }],
    ["Rename", () => rename(call, told), { iconName: "edit", needs: "write" }],
    ["Delete", () => remove(call, told), { iconName: "trash", danger: true, needs: "delete" }],
  ];
}

const address = (call) => location.origin + link(path`/traces/${call.trace_id}`, { call: call.id });

async function copy(text, said) {
  await navigator.clipboard?.writeText(text);
  toast(said);
}

/** The lines that read a call with the SDK. */
export function python(call) {
  return (
    `import os\nos.environ["WANDB_BASE_URL"] = "${location.origin}"\n\nimport weave\n\n` +
    `client = weave.init("${projectId()}")\ncall = client.get_call("${call.id}")\nprint(call.inputs, call.output)\n`
  );
}

async function rename(call, told) {
  const done = await form(
    "Rename call",
    [{ name: "name", label: "Name", value: callName(call), hint: "Leave empty to use the name of its op." }],
    {
      action: "Rename",
      submit: ({ name }) => postProject("/call/update", { call_id: call.id, display_name: name.trim() }).then(() => true),
    },
  );
  if (done) told("renamed");
}

async function remove(call, told) {
  const sure = await confirm(
    "Delete this call?",
    "Its child calls are deleted too. This cannot be undone.",
  );
  if (sure && (await attempt(() => postProject("/calls/delete", { call_ids: [call.id] }), "Deleted"))) told("deleted");
}
