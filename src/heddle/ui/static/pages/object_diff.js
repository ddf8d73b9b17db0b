// What differs between two versions: prompts message by message, code by lines, any other value as its JSON text.
import { h } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { loaded } from "../lib/parts.js";
import { query, setQuery } from "../lib/router.js";
import { diffView } from "../lib/textdiff.js";
import { filesOf, sourceOf } from "./object_code.js";
import { isPrompt, messagesOf } from "./object_prompt.js";

/** The changes from the version in the query `with` (else the one before) to this one. */
export function changesView(object, listed, read) {
  const before = () => otherVersion(object, listed.value);
  const state = resource(
    () => before()?.digest ?? null,
    async (digest, abort) => {
      const other = await read(object.object_id, digest, abort);
      const needsCode = filesOf(object.val).length > 0 || filesOf(other.val).length > 0;
      const texts = needsCode ? await Promise.all([sourceOf(other.val, abort), sourceOf(object.val, abort)]) : null;
      return { other, texts };
    },
  );
  return [
    h("label.comparewith", "Changes from", versionChoice(object, listed), h("span", `to v${object.version_index}`)),
    h(
      "div.changes",
      loaded(state, ({ other, texts }) => differences(other, object, texts)),
    ),
  ];
}

function otherVersion(object, versions) {
  const wanted = query("with");
  const others = versions.filter(({ digest }) => digest !== object.digest);
  return (
    others.find(({ digest }) => digest === wanted) ??
    others.find(({ version_index: index }) => index < object.version_index) ??
    others[0] ??
    null
  );
}

function versionChoice(object, listed) {
  return h(
    "select",
    { "aria-label": "Version to compare with", onchange: (event) => setQuery({ with: event.target.value }) },
    () =>
      listed.value
        .filter(({ digest }) => digest !== object.digest)
        .map(({ digest, version_index: index }) =>
          h("option", { value: digest, selected: otherVersion(object, listed.value)?.digest === digest }, `v${index}`),
        ),
  );
}

function differences(before, after, texts) {
  const names = /** @type {[string, string]} */ ([`v${before.version_index}`, `v${after.version_index}`]);
  if (texts) return diffView(texts[0], texts[1], { label: "Changed code", names });
  if (isPrompt(before.val) && isPrompt(after.val)) return messageDifferences(messagesOf(before.val), messagesOf(after.val));
  return diffView(stableText(before.val), stableText(after.val), { label: "Changed value", names });
}

function messageDifferences(before, after) {
  const count = Math.max(before.length, after.length);
  return Array.from({ length: count }, (_, index) => {
    const [old, now] = [before[index], after[index]];
    const role = now?.role || old?.role || "text";
    const note = !old ? "added" : !now ? "removed" : old.role !== now.role ? `${old.role} → ${now.role}` : "";
    return h(
      "section.messagechange",
      h("h3", role, note && h("span.badge.warn", note)),
      diffView(old?.text ?? "", now?.text ?? "", { label: `Changes of message ${index + 1}` }),
    );
  });
}

/** A value as JSON text with its keys in order, so that only what differs differs. */
export function stableText(value) {
  return JSON.stringify(ordered(value), null, 2) ?? "null";
}

function ordered(value) {
  if (Array.isArray(value)) return value.map(ordered);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(
    Object.keys(value)
      .sort()
      .map((key) => [key, ordered(value[key])]),
  );
}
