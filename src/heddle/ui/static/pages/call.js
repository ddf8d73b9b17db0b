// The address of a call, as SDKs print it: leads to its trace.
import { effect, h } from "../lib/dom.js";
import { lines, resource } from "../lib/data.js";
import { empty } from "../lib/panels.js";
import { button, header, loaded, skeleton, title } from "../lib/parts.js";
import { go, link, path } from "../lib/router.js";

const WHY_GONE =
  "It may have been deleted or be past the project's retention. New calls can take a moment to arrive.";

/** Shows a call in its trace, or says that there is no such call. */
export default function Call({ call }) {
  title("Call");
  const found = resource(
    () => call,
    async (id, abort) => ({
      call:
        (
          await lines(
            "/calls/stream_query",
            { filter: { call_ids: [id] }, columns: ["id", "trace_id"], limit: 1 },
            undefined,
            abort,
          )
        )[0] ?? null,
    }),
  );
  effect(() => {
    const known = found.data.value?.call;
    if (known) go(link(path`/traces/${known.trace_id}`, { call: known.id }), true);
  });
  return h(
    "div.page",
    header({ crumbs: [["Calls", link("/traces")]], title: "Call" }),
    loaded(found, (answer) =>
      answer.call
        ? skeleton()
        : empty({
            title: "Call not found",
            text: `This project has no call ${call}. ${WHY_GONE}`,
            action: h(
              "div.actions",
              button("Try again", found.reload, { iconName: "refresh" }),
              h("a.button", { href: link("/traces") }, "All calls"),
            ),
          }),
    ),
  );
}
