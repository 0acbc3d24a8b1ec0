// What a reader does with the page: filter, search, sort, evidence by click and key, and the way from answer to answer.
// Every text is in the page already, escaped. This script moves and copies elements and never writes markup.
"use strict";
(() => {
  const STEP = 50; // answers that are laid out at a time
  const byId = (id) => document.getElementById(id);
  const [list, more, search, sort, keys, panel] = ["answers", "more", "search", "sort", "keys", "panel"].map(byId);
  const controls = byId("controls");
  const framed = self !== top;
  document.body.classList.toggle("framed", framed);

  const sidesOf = (text) => (text ?? "").split("|").map((side) => side.split(" "));
  const rows = [...list.children, ...byId("rest").content.children].map((element, place) => {
    const { figures, kinds, outcomes, groups, changed } = element.dataset;
    return {
      element,
      place,
      figures: JSON.parse(figures),
      kinds: sidesOf(kinds),
      outcomes: sidesOf(outcomes),
      groups: JSON.parse(groups ?? "{}"),
      changed: changed !== undefined,
    };
  });

  // ---- which answers, in which order

  const ACCENTS = /[\u0300-\u036f]/g; // the marks of "é", once it is taken apart
  const simple = (text) => text.normalize("NFKD").replace(ACCENTS, "").toLowerCase().replace(/\s+/g, " ");

  // Question (of a turn, in its heading), right answer and answers, not other headings and evidence. Read once, when it is first asked for.
  function textOf({ element }) {
    const parts = [element.querySelector("h3").firstChild, ...element.querySelectorAll("h3 span, .turns h4, .text")];
    return simple(parts.map((it) => it?.textContent).join("\n"));
  }

  function chosen() {
    const pressed = [...controls.querySelectorAll("[aria-pressed=true]")];
    const sets = [...controls.querySelectorAll("fieldset[data-side]")].map((set) => ({
      side: Number(set.dataset.side),
      of: set.dataset.of,
      wanted: pressed.filter((it) => set.contains(it)).map((it) => it.dataset.kind),
    }));
    const bound = (id) => (byId(id)?.value ? Number(byId(id).value) : null);
    return {
      sets: sets.filter((it) => it.wanted.length),
      changed: pressed.some((it) => it.dataset.kind === "changed"),
      groups: [...controls.querySelectorAll("[data-group]")].filter((it) => it.value).map((it) => [it.dataset.group, it.value]),
      figure: byId("figure")?.value,
      least: bound("least"),
      most: bound("most"),
      words: simple(search.value).trim(),
    };
  }

  // A figure that is not known lies in no range.
  const inRange = (value, { least, most }) =>
    (least === null && most === null) || (value !== undefined && (least === null || value >= least) && (most === null || value <= most));

  const matches = (row, wanted) =>
    (!wanted.changed || row.changed) &&
    wanted.sets.every((set) => set.wanted.some((kind) => row[set.of][set.side]?.includes(kind))) &&
    wanted.groups.every(([name, value]) => row.groups[name] === value) &&
    inRange(row.figures[wanted.figure], wanted) &&
    (!wanted.words || (row.text ??= textOf(row)).includes(wanted.words));

  // What has no such figure comes last in either direction; what is equal stays in the order of the page.
  const names = new Intl.Collator(undefined, { numeric: true });
  function order(one, two) {
    const name = sort.value.slice(0, -1);
    const sign = sort.value.endsWith("-") ? -1 : 1;
    const [a, b] = [one.figures[name], two.figures[name]];
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined) || one.place - two.place;
    return sign * (typeof a === "string" ? names.compare(a, b) : a - b) || one.place - two.place;
  }

  let shown = rows;
  let drawn = list.children.length;

  function refresh() {
    const wanted = chosen();
    close();
    shown = rows.filter((row) => matches(row, wanted)).sort(order);
    list.replaceChildren();
    found?.clear();
    drawn = 0;
    draw(STEP);
    tell();
  }

  function tell() {
    const answers = `${rows.length} ${rows.length === 1 ? "answer" : "answers"}`;
    byId("count").textContent = shown.length === rows.length ? answers : `${shown.length} of ${answers}`;
  }

  function draw(until) {
    const next = shown.slice(drawn, until).map((row) => row.element);
    drawn += next.length;
    for (const section of next) {
      prepare(section);
      highlight(section);
    }
    list.append(...next);
    more.hidden = drawn >= shown.length;
  }

  function prepare(section) {
    if (section.tabIndex === -1 && section.hasAttribute("tabindex")) return;
    section.tabIndex = -1;
    for (const text of section.querySelectorAll(".text")) {
      const items = itemsOf(text);
      for (const mark of text.querySelectorAll("mark")) {
        mark.tabIndex = 0;
        mark.setAttribute("role", "button");
        mark.setAttribute("aria-haspopup", "dialog");
        mark.setAttribute("aria-expanded", "false");
        const label = items[mark.dataset.item].querySelector(".kind").textContent;
        mark.setAttribute("aria-label", `${label}: ${mark.textContent}`);
      }
    }
  }

  // Where the searched text is, in what is laid out. Browsers that cannot do this show the answers without it.
  const found = globalThis.Highlight ? new Highlight() : null;
  if (found) CSS.highlights.set("found", found);

  function highlight(section) {
    const words = search.value.trim().toLowerCase();
    if (!found || !words) return;
    for (const part of section.querySelectorAll("h3, .text")) {
      const walker = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
      for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const text = node.data.toLowerCase();
        if (text.length !== node.data.length) continue; // a few capitals have longer small letters
        for (let at = text.indexOf(words); at >= 0; at = text.indexOf(words, at + words.length)) {
          const range = new Range();
          range.setStart(node, at);
          range.setEnd(node, at + words.length);
          found.add(range);
        }
      }
    }
  }

  controls.addEventListener("click", (event) => {
    const button = event.target.closest("[aria-pressed]");
    if (!button) return;
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    refresh();
  });
  search.addEventListener("input", refresh);
  controls.addEventListener("change", (event) => {
    if (event.target.matches("select, .bound")) refresh();
  });
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.addEventListener("reset", () => {
    for (const it of controls.querySelectorAll("[aria-pressed]")) it.setAttribute("aria-pressed", "false");
    setTimeout(refresh); // the fields are reset after this event
  });
  more.addEventListener("click", () => {
    const first = shown[drawn];
    draw(drawn + STEP);
    first.element.focus();
  });
  new IntersectionObserver((entries) => {
    if (entries.some((it) => it.isIntersecting)) draw(drawn + STEP);
  }, { rootMargin: "600px" }).observe(more);

  // ---- evidence

  let opener = null; // the mark whose evidence is shown

  const itemsOf = (text) => text.parentElement.querySelector(".labels ol")?.children ?? [];

  function open(mark) {
    close();
    opener = mark;
    mark.setAttribute("aria-expanded", "true");
    const item = itemsOf(mark.closest(".text"))[mark.dataset.item];
    byId("panel-text").replaceChildren(...item.cloneNode(true).childNodes);
    panel.hidden = false;
    panel.scrollTop = 0;
    if (framed) beside(mark);
    panel.focus({ preventScroll: true });
    // The panel lies over the lower part of the window, which `scroll-padding` keeps free: the sentence stays in sight.
    const [sentence, over] = [mark.getBoundingClientRect(), panel.getBoundingClientRect()];
    if (!framed && sentence.bottom > over.top && sentence.right > over.left) mark.scrollIntoView({ block: "nearest" });
  }

  // Of a frame the lower end may be out of sight, so there the panel lies below the sentence, or above it.
  function beside(mark) {
    const [sentence, over, gap] = [mark.getBoundingClientRect(), panel.getBoundingClientRect(), 8];
    const fits = sentence.bottom + gap + over.height <= innerHeight || sentence.top < over.height;
    panel.style.top = fits ? `${sentence.bottom + gap}px` : "auto";
    panel.style.bottom = fits ? "auto" : `${innerHeight - sentence.top + gap}px`;
  }

  function close() {
    if (!opener) return;
    const inside = panel.contains(document.activeElement);
    panel.hidden = true;
    opener.setAttribute("aria-expanded", "false");
    if (inside) opener.focus({ preventScroll: true });
    opener = null;
  }

  const toggle = (mark) => (mark === opener ? close() : open(mark));

  list.addEventListener("click", (event) => {
    const mark = event.target.closest("mark");
    if (mark && getSelection().isCollapsed) toggle(mark);
  });
  byId("close").addEventListener("click", close);

  // ---- keys

  function go(step) {
    const inside = list.contains(document.activeElement) ? document.activeElement : opener;
    let at = inside ? shown.findIndex((row) => row.element.contains(inside)) + step : 0;
    if (!inside) {
      const tops = shown.slice(0, drawn).map((row) => row.element.getBoundingClientRect().top);
      const below = tops.findIndex((top) => top > 16);
      at = step > 0 ? (below < 0 ? drawn : below) : (below < 0 ? drawn : below) - 2;
    }
    if (at < 0 || at >= shown.length) return;
    close();
    if (at >= drawn) draw(at + STEP);
    shown[at].element.focus({ preventScroll: true });
    shown[at].element.scrollIntoView({ block: "start" });
  }

  const steps = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1 };

  document.addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (key === "Escape" && opener) {
      close();
      return event.preventDefault();
    }
    if (target.matches("#answers mark") && (key === "Enter" || key === " ")) {
      toggle(target);
      return event.preventDefault();
    }
    if (target.closest("input, select, textarea, .scroll") || (key.length === 1 && !keys.checked)) return;
    if (key === "/") search.focus();
    else if (key in steps) go(steps[key]);
    else return;
    event.preventDefault();
  });

  // ---- print: all that the filters leave, with its evidence

  let opened = [];
  addEventListener("beforeprint", () => {
    close();
    draw(shown.length);
    opened = [...list.querySelectorAll("details:not([open])")];
    for (const it of opened) it.open = true;
  });
  addEventListener("afterprint", () => {
    for (const it of opened) it.open = false;
  });

  controls.hidden = framed && rows.length < 2; // nothing to choose from
  for (const row of rows.slice(0, drawn)) prepare(row.element);
  more.hidden = drawn >= rows.length;
  tell();
})();
