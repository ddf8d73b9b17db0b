// Presses every control of a page, also those in the menus and dialogs that they open; for an eye that may only read.
(() => {
  const refused = [];
  const pressed = [];
  let open = 0;
  const send = globalThis.fetch;
  globalThis.fetch = async (address, options = {}) => {
    open++;
    try {
      const answer = await send(address, options);
      const method = options.method ?? "GET";
      if (answer.status === 403 && method !== "GET") {
        refused.push(`${pressed.at(-1) ?? "as it opens"}: ${method} ${new URL(address, location.href).pathname}`);
      }
      return answer;
    } finally {
      open--;
    }
  };
  const CONTROLS = ":is(button,[role=menuitem],[role=tab],input[type=checkbox],input[type=radio],summary,select):not(:disabled)";
  const seen = (element) => element.isConnected && element.checkVisibility();
  const find = (within) => [...document.querySelectorAll(`${within} ${CONTROLS}`)].filter(seen);
  const nameOf = (element) => (element.getAttribute("aria-label") || element.textContent || element.name || "").trim().slice(0, 60);
  const tick = (time) => new Promise((resolve) => setTimeout(resolve, time));
  let changes = 0;
  new MutationObserver(() => changes++).observe(document, { subtree: true, childList: true, attributes: true });
  /** Wait for what a control does: it asks the server or changes the page, at once or when its module is there. */
  const settle = async (before) => {
    await tick(10);
    for (let waited = 0; !open && changes === before && waited < 15; waited++) await tick(10);
    for (let waited = 0; open && waited < 200; waited++) await tick(10);
    await tick(0);
  };
  const press = async (element) => {
    pressed.push(nameOf(element));
    const before = changes;
    if (element instanceof HTMLSelectElement) {
      element.selectedIndex = (element.selectedIndex + 1) % element.options.length;
      element.dispatchEvent(new Event("change", { bubbles: true }));
    } else element.click();
    await settle(before);
  };
  const fill = (dialog) => {
    for (const input of dialog.querySelectorAll("input:not([type=checkbox],[type=radio],[type=file]),textarea")) {
      if (!input.value) input.value = { number: "1", url: "https://example.com/x", email: "a@example.com" }[input.type] ?? "x1";
      input.dispatchEvent(new Event("input", { bubbles: true }));
    }
  };
  const closeAll = () => {
    for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
    for (const dialog of document.querySelectorAll("dialog.drawer")) dialog.dispatchEvent(new Event("replace"));
  };
  const pressDialog = async () => {
    for (let at = 0; at < 40; at++) {
      const dialog = [...document.querySelectorAll("dialog[open]")].at(-1);
      if (!dialog) return;
      fill(dialog);
      const controls = [...dialog.querySelectorAll(CONTROLS)].filter((one) => seen(one) && !/^(Close|Cancel)$/.test(nameOf(one)));
      if (at >= controls.length) return;
      await press(controls[at]);
    }
  };
  const pressOne = async (control, item) => {
    if (item < 0 || control.getAttribute("aria-haspopup") !== "menu") {
      await press(control);
      return 0;
    }
    await press(control);
    const items = find("[role=menu]");
    if (items[item]) await press(items[item]);
    return items.length;
  };
  /** Press on from `[control, item of its menu]`; gives where to go on after a new start, null at the end. */
  globalThis.pressAll = async ([first, firstItem]) => {
    const began = location.href;
    for (let at = first; ; at++) {
      const controls = find("main");
      if (at >= controls.length) return null;
      const hasMenu = controls[at].getAttribute("aria-haspopup") === "menu";
      for (let item = at === first ? firstItem : 0, items = 1; item < items; item++) {
        items = (await pressOne(controls[at], hasMenu ? item : -1)) || 1;
        await pressDialog();
        closeAll();
        document.body.dispatchEvent(new PointerEvent("pointerdown", { bubbles: true }));
        await tick(0);
        if (location.href !== began || !controls[at].isConnected) return item + 1 < items ? [at, item + 1] : [at + 1, 0];
      }
    }
  };
  globalThis.pressedControls = () => ({ refused, pressed });
})();
