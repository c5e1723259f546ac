// What stands around the views of every page: tabs, choices, keys, finding, downloads.

import * as tokens from "./tokens.js";
import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as parts from "./parts.js";
import * as download from "./download.js";

const { facts } = run;
const { el } = parts;

/** An element by its id: a field, a list, a button, a dialog.
 * @returns {any} */
export function byId(id) {
  return document.getElementById(id);
}

// ── views ──

export function showTab(name) {
  for (const other of state.VIEWS) {
    byId(`panel-${other}`).hidden = other !== name;
    const tab = byId(`tab-${other}`);
    tab.setAttribute("aria-selected", String(other === name));
    tab.tabIndex = other === name ? 0 : -1;
  }
  document.body.dataset.view = name;
}

for (const name of state.VIEWS) byId(`tab-${name}`).addEventListener("click", () => state.set({ view: name }));
byId("tabs").addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by) return;
  event.preventDefault();
  event.stopPropagation();
  const to = (state.VIEWS.indexOf(state.state.view) + by + state.VIEWS.length) % state.VIEWS.length;
  state.set({ view: state.VIEWS[to] });
  byId(`tab-${state.VIEWS[to]}`).focus();
});

// ── what is chosen ──

const LISTS = ["scale", "curve", "pixel", "statistic"];

function fillChoices() {
  const sequence = byId("sequence");
  facts.sequences.forEach((one, i) => {
    const words = one.opening.map((t) => tokens.visible(t)).join(" ");
    sequence.append(el("option", { value: i }, `${one.index}: ${words ? tokens.shorten(words, 28) : "all padding"}`));
  });
  byId("sequence-label").hidden = facts.sequences.length < 2;
  const choice = byId("head");
  const groups = new Map();
  facts.heads.forEach(([layer, number], i) => {
    if (!groups.has(layer)) groups.set(layer, el("optgroup", { label: `layer ${layer}` }));
    groups.get(layer).append(el("option", { value: i }, facts.namesLayers ? `layer ${layer} · head ${number}` : `head ${number}`));
  });
  if (facts.namesLayers) choice.append(...groups.values());
  else choice.append(...[...groups.values()].flatMap((group) => [...group.children]));
  sequence.addEventListener("change", () => state.set({ sequence: Number(sequence.value) }));
  choice.addEventListener("change", () => state.set({ head: Number(choice.value), chosen: null }));
  byId("previous").addEventListener("click", () => state.stepHead(-1));
  byId("next").addEventListener("click", () => state.stepHead(1));
  for (const name of LISTS) {
    const known = state.CHOICES[name]; // what the page starts with stands first
    const options = [...byId(name).options].filter(({ value }) => known.includes(value));
    byId(name).replaceChildren(...options.sort((a, b) => known.indexOf(a.value) - known.indexOf(b.value)));
  }
  byId("pixel-label").hidden = run.single;
  for (const name of LISTS) byId(name).addEventListener("change", () => state.set({ [name]: byId(name).value }));
}

function showChoices() {
  const { sequence, head: index } = state.state;
  const shown = { sequence, head: index, ...Object.fromEntries(LISTS.map((name) => [name, state.state[name]])) };
  for (const [name, value] of Object.entries(shown)) if (byId(name).value !== String(value)) byId(name).value = value;
  byId("previous").disabled = index === 0;
  byId("next").disabled = index === facts.heads.length - 1;
}

function describeRun(rounding) {
  byId("source").textContent = facts.source || "attention";
  const masks = facts.masks.length ? `masks: ${facts.masks.join(", ")}` : "no mask";
  byId("masks-line").textContent = masks;
  byId("notes-line").textContent = facts.notes.join("; ");
  byId("notes-line").hidden = !facts.notes.length;
  byId("untrained").hidden = facts.trained;
  byId("rounding").textContent = rounding;
}

// ── words for those who listen ──

let timer = 0;
export function say(words) {
  clearTimeout(timer);
  timer = setTimeout(() => { byId("spoken").textContent = words; }, 250);
}

// ── keys ──

const help = byId("help");
const shortcuts = byId("shortcuts");

// A change by the keyboard: the view brings what was chosen into sight.
let byKey = false;
export function change(changes) {
  byKey = true;
  state.set(changes);
  byKey = false;
}

// `letters` are a page's own keys and what they do; `arrow` takes the name of a key, and says whether it was of use.
export function listen(letters, arrow) {
  const keys = {
    ...Object.fromEntries(state.VIEWS.map((view, i) => [i + 1, () => state.set({ view })])),
    "[": () => state.stepHead(-1),
    "]": () => state.stepHead(1),
    "{": () => state.stepLayer(-1),
    "}": () => state.stepLayer(1),
    s: () => state.set({ sequence: (state.state.sequence + 1) % facts.sequences.length }),
    "/": () => byId("find").focus(),
    "?": () => help.showModal(),
    ...letters,
  };
  addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const field = target.matches("input[type=search], select");
    if (event.key === "Escape") {
      state.set({ pinned: false });
      if (field) target.blur();
      return;
    }
    if (field) return;
    const interactive = target.matches("button, a");
    let done = false;
    if (event.key.startsWith("Arrow")) {
      const quiet = target.matches("pre, .scroller, input[type=range]");
      done = !quiet && arrow(event.key, event.shiftKey);
    } else if ((event.key === "Enter" || event.key === " ") && !interactive && state.state.view !== "trace") {
      state.set({ pinned: !state.state.pinned });
      done = true;
    } else if (shortcuts.checked && Object.hasOwn(keys, event.key)) {
      keys[event.key]();
      done = true;
    }
    if (done) event.preventDefault();
  });
}

byId("help-button").addEventListener("click", () => help.showModal());

// ── finding a token ──

// `matches(wanted)` gives the places that fit what was typed, in order; `goTo` shows one of them.
export function finder(matches, goTo) {
  let found = [];
  let at = -1;
  function search() {
    const wanted = byId("find").value.trim().toLowerCase();
    found = wanted ? matches(wanted) : [];
    at = -1;
    byId("found").textContent = wanted ? (found.length ? `${found.length} found` : "none") : "";
  }
  byId("find").addEventListener("input", search);
  byId("find").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (at < 0) search();
    if (!found.length) return;
    at = (at + (event.shiftKey ? -1 : 1) + found.length) % found.length;
    goTo(found[at]);
    byId("found").textContent = `${at + 1} of ${found.length}`;
  });
  return search;
}

// ── together ──

// Whether something is still being opened or drawn stands on the page, for those who cannot see it.
let working = 0;
export function busyWhile(work) {
  working++;
  byId("main").setAttribute("aria-busy", "true");
  return work.finally(() => {
    working--;
    if (!working) byId("main").setAttribute("aria-busy", "false");
  });
}

export function fail(error) {
  byId("failure").hidden = false;
  byId("failure").textContent = `The page cannot be shown: ${error.message}`;
  throw error;
}

// A view that was hidden while things changed learns of them when it is shown.
let before = new Set();
function withMissed(changed) {
  const all = changed.has("view") ? new Set([...changed, ...before]) : changed;
  before = changed.has("view") ? new Set() : new Set([...before, ...changed]);
  return all;
}

// Show the page. `update(changed, all)` draws what changed; `all` is that and what its view missed.
export function begin(update, rounding) {
  if (!("DecompressionStream" in globalThis)) throw new Error("this browser is too old: it has no DecompressionStream");
  fillChoices();
  describeRun(rounding);
  const react = (changed) => {
    if (byKey) changed.add("by-key");
    showChoices();
    busyWhile(Promise.resolve(update(changed, withMissed(changed))));
  };
  state.onChange(react);
  addEventListener("hashchange", state.read);
  addEventListener("popstate", state.read);
  const redraw = () => busyWhile(Promise.resolve(update(new Set(["scale", "head", "view"]), new Set(["scale", "head", "view"]))));
  byId("png").addEventListener("click", () => busyWhile(download.png(redraw)));
  byId("svg").addEventListener("click", () => busyWhile(download.svg(redraw)));
  colours.onThemeChange(() => react(new Set(["scale", "head", "view"])));
  let settled = 0;
  addEventListener("resize", () => {
    clearTimeout(settled);
    settled = setTimeout(() => react(new Set(["view"])), 80);
  });
  state.start();
  state.read();
  if (location.hash.length < 2) react(new Set(["view", "head", "sequence"]));
}
