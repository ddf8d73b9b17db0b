// What can be done with a version of an object or op.
import { postProject, post } from "../lib/data.js";
import { attempt, confirm, form, toast } from "../lib/dialog.js";
import { go, link, path, projectId } from "../lib/router.js";

/** The ref of a version, as SDKs write it. */
export function referenceOf(object) {
  const kind = object.kind === "op" ? "op" : "object";
  return `weave:///${projectId()}/${kind}/${encodeURIComponent(object.object_id)}:${object.digest}`;
}

/** The entries of the menu of a version. */
export function actionsOf(object, listed, reload) {
  const copy = (text, done) => attempt(() => navigator.clipboard.writeText(text), done);
  return [
    ["Copy reference", () => copy(referenceOf(object), "Copied"), { iconName: "copy" }],
    ["Copy Python", () => copy(pythonOf(object), "Copied"), { iconName: "code" }],
    ["Link to registry…", () => linkToRegistry(object), { iconName: "link", needs: "write" }],
    ["Delete this version…", () => deleteVersion(object, listed, reload), { iconName: "trash", danger: true, needs: "delete" }],
    listed.length > 1 && [
      `Delete all ${listed.length} versions…`,
      () => deleteAll(object, listed),
      { iconName: "trash", danger: true, needs: "delete" },
    ],
  ];
}

/** The lines that fetch a version in a program. */
export function pythonOf(object) {
  return `import weave\nweave.init("${projectId()}")\nvalue = weave.ref("${object.object_id}:v${object.version_index}").get()`;
}

async function linkToRegistry(object) {
  const [entity] = projectId().split("/");
  const done = await form(
    "Link to registry",
    [
      {
        name: "portfolio",
        label: "Portfolio",
        value: object.object_id,
        required: true,
        hint: "The name of the version in the registry.",
      },
      {
        name: "registry",
        label: "Registry",
        value: `${entity}/wandb-registry-models`,
        required: true,
        hint: "entity/project; the version is copied there with its files.",
      },
      { name: "aliases", label: "Aliases", hint: "Optional. Separate several with commas, such as production." },
    ],
    {
      action: "Link",
      submit: async ({ portfolio, registry, aliases }) => {
        const [entityName, projectName] = registry.split("/");
        if (!projectName) throw new Error("Write the registry as entity/project");
        const answer = await post("/link_to_registry", {
          ref: referenceOf(object),
          aliases: aliases
            .split(",")
            .map((name) => name.trim())
            .filter(Boolean),
          target: { portfolio_name: portfolio, entity_name: entityName, project_name: projectName },
        });
        return { portfolio, registry, index: answer.version_index };
      },
    },
  );
  if (done) toast(`Linked as ${done.portfolio} v${done.index} in ${done.registry}`);
}

async function deleteVersion(object, listed, reload) {
  const text = "Calls that use this version keep their data. This cannot be undone.";
  if (!(await confirm(`Delete ${object.object_id} v${object.version_index}?`, text))) return;
  const done = await attempt(
    () => postProject("/obj/delete", { object_id: object.object_id, digests: [object.digest] }),
    "Version deleted",
  );
  if (!done) return;
  const room = object.kind === "op" ? "ops" : "objects";
  const others = listed.filter(({ digest }) => digest !== object.digest);
  go(others.length ? link(`/${room}${path`/${object.object_id}/versions/latest`}`) : link(`/${room}`), true);
  if (others.length) reload();
}

async function deleteAll(object, listed) {
  if (!(await confirm(`Delete ${object.object_id}?`, `All ${listed.length} versions are deleted, with their tags and aliases. This cannot be undone.`))) return;
  const done = await attempt(() => postProject("/obj/delete", { object_id: object.object_id }), "Deleted");
  if (done) go(link(object.kind === "op" ? "/ops" : "/objects"), true);
}
