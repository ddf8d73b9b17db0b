// Settings: of the open project, and of the server: people and keys, audit log, providers, storage, what it was started with.
import { h } from "../lib/dom.js";
import { tabs } from "../lib/panels.js";
import { page, title } from "../lib/parts.js";
import { link } from "../lib/router.js";
import { Audit } from "./settings_audit.js";
import { Keys } from "./settings_keys.js";
import { Project } from "./settings_project.js";
import { Providers } from "./settings_providers.js";
import { Server, Storage } from "./settings_server.js";

/** The page, with the project's own tab where one is open. */
export default function Settings({ entity = "", project = "" }) {
  title("Settings");
  const crumbs = project ? [[project, link()]] : [];
  const entries = [
    ["keys", "People and keys", Keys], ["audit", "Audit log", Audit], ["providers", "Providers", () => Providers(Boolean(entity))], ["storage", "Storage", Storage],
    ["server", "Server", Server],
  ];
  if (project) entries.unshift(["project", "Project", Project]);
  return page({ crumbs, title: "Settings" }, h("div.settings", tabs("Settings", entries)));
}
