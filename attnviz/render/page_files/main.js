// The page as a whole: views, heads, sequences, keys, finding, downloads.

import * as tokens from "./tokens.js";
import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as parts from "./parts.js";
import * as card from "./card.js";
import * as matrix from "./matrix.js";
import * as head from "./head.js";
import * as lines from "./lines.js";
import * as text from "./text.js";
import * as trace from "./trace.js";
import * as download from "./download.js";

const { facts } = run;
const { el } = parts;
const byId = (id) => document.getElementById(id);

// ── views ──

const beside = card.card();
const legend = card.legend();
const side = {
  update(shown) {
    beside.update(shown, ...tokensOfCard());
    beside.strips.update(shown.index);
    legend.update(shown);
    say(shown);
  },
};

// The query and the key that the card is about: those of the cell, or one token in both its parts.
function tokensOfCard() {
  const { view, query, key, side: direction } = state.state;
  if (view === "head" || facts.cross) return [query, key];
  return direction === "looks" ? [query, query] : [key, key];
}

const views = {
  matrix: matrix.view(openHead, lookAt),
  head: head.view(side),
  lines: lines.view(side),
  text: text.view(side),
  trace: trace.view(),
};
for (const [name, view] of Object.entries(views)) byId(`panel-${name}`).append(view.root);
byId("aside").append(beside.root);
byId("legend").append(legend.root);

const PARTS_OF_CARD = { matrix: ["preview"], head: ["cell", "lists"], lines: ["lists"], text: ["lists"], trace: [] };

// A head that is pointed at, or reached by the keyboard, in the matrix.
async function lookAt(i) {
  beside.strips.update(i);
  beside.preview.update(await run.head(state.state.sequence, i));
}

function openHead(i) {
  state.set({ head: i, view: "head", chosen: null });
  views.head.focus();
}

function showView(name) {
  for (const other of state.VIEWS) {
    byId(`panel-${other}`).hidden = other !== name;
    const tab = byId(`tab-${other}`);
    tab.setAttribute("aria-selected", String(other === name));
    tab.tabIndex = other === name ? 0 : -1;
  }
  beside.cell.hidden = !PARTS_OF_CARD[name].includes("cell");
  beside.preview.root.hidden = !PARTS_OF_CARD[name].includes("preview");
  beside.looks.root.hidden = beside.seen.root.hidden = !PARTS_OF_CARD[name].includes("lists");
  byId("aside").hidden = name === "trace";
  byId("legend").hidden = name === "trace" || name === "lines";
  byId("scale-label").hidden = byId("curve-label").hidden = name === "trace" || name === "lines";
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

function fillChoices() {
  const sequence = byId("sequence");
  facts.sequences.forEach((one, i) => {
    const [start, end] = one.queryReal;
    const words = one.queryTokens.slice(start, Math.min(end, start + 8)).map((t) => tokens.visible(t)).join(" ");
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
  byId("scale").addEventListener("change", (event) => state.set({ scale: event.target.value }));
  byId("curve").addEventListener("change", (event) => state.set({ curve: event.target.value }));
}

function showChoices() {
  const { sequence, head: index, scale, curve } = state.state;
  byId("sequence").value = sequence;
  byId("head").value = index;
  byId("scale").value = scale;
  byId("curve").value = curve;
  byId("previous").disabled = index === 0;
  byId("next").disabled = index === facts.heads.length - 1;
}

// ── words for those who listen ──

let timer = 0;
function say(shown) {
  const { view, query, key, side: direction } = state.state;
  clearTimeout(timer);
  timer = setTimeout(() => {
    const words = view === "head" ? parts.cellText(shown, query, key) : parts.tokenText(shown, direction, direction === "looks" ? query : key);
    byId("spoken").textContent = `${run.headName(facts.heads[shown.index])}: ${words}`;
  }, 250);
}

function describeRun() {
  byId("source").textContent = facts.source || "attention";
  const masks = facts.masks.length ? `masks: ${facts.masks.join(", ")}` : "no mask";
  byId("masks-line").textContent = masks;
  byId("untrained").hidden = facts.trained;
  byId("rounding").textContent = `Weights on this page are rounded: the largest error is ${facts.error.toPrecision(2)}; exact zeros stay exact.`;
}

// ── moving ──

function tokenBy(name, by) {
  const one = facts.sequences[state.state.sequence];
  const [from, end] = state.state.view === "head"
    ? [0, name === "query" ? facts.queries : facts.keys]
    : name === "query" ? one.queryReal : one.keyReal;
  if (end <= from) return;
  change({ [name]: Math.min(end - 1, Math.max(from, state.state[name] + by)) });
}

// A change by the keyboard: the view brings what was chosen into sight.
let byKey = false;
function change(changes) {
  byKey = true;
  state.set(changes);
  byKey = false;
}

function arrow(key) {
  const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  const { view, side: direction } = state.state;
  if (view === "head") {
    if (dx) tokenBy("key", dx);
    else tokenBy("query", dy);
    return true;
  }
  if (view === "text") {
    const name = direction === "seen" ? "key" : "query";
    const list = document.querySelector(`.sentence[data-text="${facts.cross && name === "key" ? "keys" : "queries"}"]`);
    tokenBy(name, dy || (list.dir === "rtl" ? -dx : dx));
    return true;
  }
  if (view === "lines") {
    if (dx) {
      const to = document.querySelector(`.tokens[data-text="${dx < 0 ? "queries" : "keys"}"]`);
      change({ side: dx < 0 ? "looks" : "seen" });
      to.focus({ focusVisible: true });
    } else tokenBy(direction === "seen" ? "key" : "query", dy);
    return true;
  }
  return false;
}

const help = byId("help");
const shortcuts = byId("shortcuts");
const KEYS = {
  1: () => state.set({ view: "matrix" }),
  2: () => state.set({ view: "head" }),
  3: () => state.set({ view: "lines" }),
  4: () => state.set({ view: "text" }),
  5: () => state.set({ view: "trace" }),
  "[": () => state.stepHead(-1),
  "]": () => state.stepHead(1),
  "{": () => state.stepLayer(-1),
  "}": () => state.stepLayer(1),
  s: () => state.set({ sequence: (state.state.sequence + 1) % facts.sequences.length }),
  r: () => state.set({ side: state.state.side === "looks" ? "seen" : "looks" }),
  "/": () => byId("find").focus(),
  "?": () => help.showModal(),
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const field = event.target.matches("input[type=search], select");
  if (event.key === "Escape") {
    state.set({ pinned: false });
    if (field) event.target.blur();
    return;
  }
  if (field) return;
  const interactive = event.target.matches("button, a");
  let done = false;
  if (event.key.startsWith("Arrow")) {
    const quiet = event.target.matches("pre, .scroller, input[type=range]");
    done = !quiet && arrow(event.key);
  } else if ((event.key === "Enter" || event.key === " ") && !interactive && state.state.view !== "trace") {
    state.set({ pinned: !state.state.pinned });
    done = true;
  } else if (shortcuts.checked && Object.hasOwn(KEYS, event.key)) {
    KEYS[event.key]();
    done = true;
  }
  if (done) event.preventDefault();
});

byId("png").addEventListener("click", download.png);
byId("svg").addEventListener("click", download.svg);
byId("help-button").addEventListener("click", () => help.showModal());

// ── finding a token ──

let matches = [];
let matchAt = -1;

function search() {
  const wanted = byId("find").value.trim().toLowerCase();
  const one = facts.sequences[state.state.sequence];
  const found = (all, name, [start, end]) => all
    .map((token, at) => ({ name, at, fits: `${token}\n${tokens.visible(token)}`.toLowerCase().includes(wanted) }))
    .filter(({ at, fits }) => fits && at >= start && at < end);
  matches = wanted ? [
    ...found(run.queryTokens(state.state.sequence), "query", one.queryReal),
    ...(facts.cross ? found(run.keyTokens(state.state.sequence), "key", one.keyReal) : []),
  ] : [];
  matchAt = -1;
  byId("found").textContent = wanted ? (matches.length ? `${matches.length} found` : "none") : "";
}

function goToMatch(by) {
  if (!matches.length) return;
  matchAt = (matchAt + by + matches.length) % matches.length;
  const { name, at } = matches[matchAt];
  const view = ["matrix", "trace"].includes(state.state.view) ? "head" : state.state.view;
  change({ [name]: at, side: name === "query" ? "looks" : "seen", pinned: true, view });
  byId("found").textContent = `${matchAt + 1} of ${matches.length}`;
}

byId("find").addEventListener("input", search);
byId("find").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  if (matchAt < 0) search();
  goToMatch(event.shiftKey ? -1 : 1);
});

// ── together ──

// Whether something is still being opened or drawn stands on the page, for those who cannot see it.
let working = 0;
function busyWhile(work) {
  working++;
  byId("main").setAttribute("aria-busy", "true");
  work.finally(() => {
    working--;
    if (!working) byId("main").setAttribute("aria-busy", "false");
  });
}

let before = new Set();
function update(changed) {
  if (byKey) changed.add("by-key");
  const { view, head: index } = state.state;
  if (changed.has("view")) showView(view);
  showChoices();
  if (changed.has("sequence")) search();
  if (["sequence", "head", "view"].some((name) => changed.has(name))) {
    document.title = view === "trace" || view === "matrix" ? "attnviz" : `${run.headName(facts.heads[index])} · attnviz`;
    beside.strips.update(index);
  }
  if (view === "matrix") legend.update(null);
  // A view that was hidden while things changed learns of them when it is shown.
  const all = changed.has("view") ? new Set([...changed, ...before]) : changed;
  before = changed.has("view") ? new Set() : new Set([...before, ...changed]);
  const looked = view === "matrix" && !(changed.size === 1 && changed.has("head"));
  busyWhile(Promise.all([views[view].update(all), looked ? lookAt(index) : null]));
}

try {
  if (!("DecompressionStream" in globalThis)) throw new Error("this browser is too old: it has no DecompressionStream");
  fillChoices();
  describeRun();
  state.onChange(update);
  addEventListener("hashchange", state.read);
  colours.onThemeChange(() => update(new Set(["scale", "head", "view"])));
  let settled = 0;
  addEventListener("resize", () => {
    clearTimeout(settled);
    settled = setTimeout(() => update(new Set(["view"])), 80);
  });
  state.start();
  state.read();
  if (location.hash.length < 2) update(new Set(["view", "head", "sequence"]));
} catch (error) {
  byId("failure").hidden = false;
  byId("failure").textContent = `The page cannot be shown: ${error.message}`;
  throw error;
}
