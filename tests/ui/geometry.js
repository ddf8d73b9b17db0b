// What of a page cannot be seen or pressed at its present width: a list of sentences.
() => {
  const problems = [];
  const tell = (what, element) => {
    const text = (element.innerText || element.textContent || "").trim().replace(/\s+/g, " ").slice(0, 50);
    const names = [...element.classList].map((name) => `.${name}`).join("");
    const above = element.parentElement?.className?.toString().split(" ")[0];
    problems.push(`${what}: ${element.tagName.toLowerCase()}${names} “${text || element.getAttribute("aria-label") || ""}” in ${above}`);
  };
  const root = document.querySelector("dialog:modal") ?? document.body;
  const style = new Map();
  const styleOf = (element) => {
    if (!style.has(element)) style.set(element, getComputedStyle(element));
    return style.get(element);
  };
  const isShown = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && !element.closest(".hidden-text, .skip, [inert]");
  // The headings above a list scroll sideways with it.
  const scrolls = (element, axis) => /auto|scroll/.test(styleOf(element)[`overflow${axis}`])
    || (axis === "X" && element.matches(".examplehead"));
  const cuts = (element, axis) => /hidden|clip/.test(styleOf(element)[`overflow${axis}`]);

  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) problems.push(`the document is ${wide} px wide in a window of ${innerWidth}`);

  /** The part of a box that boxes which scroll leave, and whether one that cuts takes something of it away. */
  const cutOff = (box, element, slack) => {
    let { left, right, top, bottom } = box;
    for (let at = element; at && at !== document.documentElement; at = at.parentElement) {
      const around = at.getBoundingClientRect();
      for (const [axis, low, high] of [["X", around.left, around.right], ["Y", around.top, around.bottom]]) {
        const [from, to] = axis === "X" ? [left, right] : [top, bottom];
        if (scrolls(at, axis) || (at.localName === "main" && axis === "Y")) {
          const [first, last] = [Math.max(from, low), Math.min(to, high)];
          if (first >= last) return null;
          if (axis === "X") [left, right] = [first, last];
          else [top, bottom] = [first, last];
        } else if (cuts(at, axis) && (from < low - slack || to > high + slack)) return [at, axis];
      }
      if (styleOf(at).position === "fixed") break;
    }
    return left < -slack || right > innerWidth + slack ? [document.documentElement, "X"] : null;
  };

  /** Said to be cut: by an ellipsis, a number of lines, or a fading end with a button for the rest. */
  const saysSo = (element, by, axis) => {
    for (let at = element; at; at = at.parentElement) {
      const { textOverflow, webkitLineClamp, maskImage } = styleOf(at);
      if (textOverflow === "ellipsis" && axis === "X" && cuts(at, "X")) return true;
      if (webkitLineClamp !== "none" || maskImage !== "none") return true;
      if (at === by) return false;
    }
    return false;
  };

  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  const told = new Set();
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const element = node.parentElement;
    if (!node.data.trim() || told.has(element) || element.closest("option, script, style, noscript, title, datalist") || !isShown(element)) continue;
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (!box.width || !box.height || (styleOf(element).fontSize === "0px")) continue;
    const cut = cutOff(box, element, 2);
    if (cut && !saysSo(element, ...cut)) {
      told.add(element);
      tell(`text cut by ${cut[0].className || cut[0].localName} (${cut[1]})`, element);
    } else if (cut && saysSo(element, ...cut)) {
      // What is left of a text must be more than its dots.
      const at = element.getBoundingClientRect();
      if (at.width < 20 && box.width > 24 && node.data.trim().length > 2) {
        told.add(element);
        tell(`only ${Math.round(at.width)} px are left of a text`, element);
      }
    }
  }

  const isCoarse = matchMedia("(pointer: coarse)").matches;
  const SMALLEST = 40;
  const INTERACTIVE = "a[href], button, input:not([type=hidden]), select, textarea, summary, [role=tab], [role=button], [role=menuitem], [role=option]";
  for (const element of root.querySelectorAll(INTERACTIVE)) {
    if (!isShown(element) || element.closest("[aria-hidden=true]")) continue;
    const box = element.getBoundingClientRect();
    if (box.width < 1 || box.height < 1) {
      tell("no size", element);
      continue;
    }
    const cut = cutOff(box, element, 2);
    if (cut) {
      const inside = Math.min(box.right, cut[0].getBoundingClientRect().right, innerWidth) - Math.max(box.left, cut[0].getBoundingClientRect().left, 0);
      if (!saysSo(element, ...cut) || inside < 20) tell(`outside (${Math.round(box.left)} to ${Math.round(box.right)}, cut by ${cut[0].className || cut[0].localName})`, element);
    }
    if (!isCoarse || element.disabled) continue;
    const target = targetOf(element).getBoundingClientRect();
    if (Math.round(target.height) < SMALLEST || (Math.round(target.width) < SMALLEST && !isInText(element)))
      tell(`${Math.round(target.width)}×${Math.round(target.height)} px to press`, element);
  }

  /** Where a finger may land: the row or the label around a control counts. */
  function targetOf(element) {
    const around = element.closest("tr, [role=row], li, label");
    const isAlone = around && (element.closest("label") === around || (element.localName === "a" && (around.onclick || isRowOfLinks(around, element))));
    if (isAlone) return around;
    return isInText(element) ? document.documentElement : element;
  }

  function isRowOfLinks(row, element) {
    return ["TR", "LI"].includes(row.tagName) || row.getAttribute("role") === "row" ? row.contains(element) : false;
  }

  /** A link among words, as in a sentence: its line is its height. */
  function isInText(element) {
    return element.localName === "a" && styleOf(element).display === "inline";
  }

  for (const cell of root.querySelectorAll("th, [role=columnheader]")) {
    if (!isShown(cell) || !cell.textContent.trim()) continue;
    const width = cell.getBoundingClientRect().width;
    if (width < 24) tell(`a column of ${Math.round(width)} px`, cell);
  }

  for (const chart of root.querySelectorAll("svg.chart, svg.radar")) {
    if (!isShown(chart)) continue;
    const around = (chart.closest(".card, .tablebox, section") ?? chart).getBoundingClientRect();
    const labels = [...chart.querySelectorAll("text")].filter((label) => label.textContent);
    for (const mark of chart.querySelectorAll("text, rect, path, circle")) {
      const box = mark.getBoundingClientRect();
      if (box.left < around.left - 1 || box.right > around.right + 1) {
        tell("a chart beyond its card", mark);
        break;
      }
    }
    const boxes = labels.map((label) => [label, label.getBoundingClientRect()]);
    boxes.some(([label, one], index) => boxes.slice(index + 1).some(([, other]) => {
      const meets = one.left < other.right - 1 && other.left < one.right - 1 && one.top < other.bottom - 2 && other.top < one.bottom - 2;
      if (meets) tell("labels of a chart collide", label);
      return meets;
    }));
  }

  for (const box of root.querySelectorAll(".card, .tile, dialog, main")) {
    if (!isShown(box)) continue;
    const around = box.getBoundingClientRect();
    if (around.width < 40) tell(`a card of ${Math.round(around.width)} px`, box);
    if (cutOff(around, box.parentElement ?? box, 2)?.[1] === "X") tell("a card is cut", box);
  }
  for (const panel of root.querySelectorAll("[role=tabpanel]")) {
    if (isShown(panel) && !panel.innerText.trim() && !panel.querySelector("svg, img, canvas, input, textarea, .skeleton")) {
      tell("a tab without content", panel);
    }
  }
  return problems;
}
