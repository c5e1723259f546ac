// The page of a run: its views, what they share, and how they learn of changes.

import * as tokens from "./tokens.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as data from "./data.js";
import * as heat from "./heat.js";
import * as words from "./words.js";
import * as card from "./card.js";
import * as matrix from "./matrix.js";
import * as head from "./head.js";
import * as lines from "./lines.js";
import * as text from "./text.js";
import * as trace from "./trace.js";
import * as shell from "./shell.js";

const { facts } = run;
const { byId } = shell;

// ── views ──

const beside = card.beside({
  onKey: (key) => shell.change({ key, pinned: true, view: "head", ...(state.state.view === "head" || facts.cross || state.state.side === "looks" ? {} : { query: state.state.key }) }),
  onQuery: (query) => shell.change({ query, pinned: true, view: "head", ...(state.state.view === "head" || facts.cross || state.state.side === "seen" ? {} : { key: state.state.query }) }),
  onFollow: follow,
  onPlace: (x, y) => { if (state.state.view === "head") views.head.goTo(x, y); },
  onRank: () => state.set({ view: "matrix", measure: "cell", sort: "down", low: 0, high: 100 }),
  onHead: (index) => state.set({ head: index, chosen: null }),
});
const legend = card.legend();
const side = {
  busyWhile: shell.busyWhile,
  words: (shown) => words.cellText(shown, state.state.query, state.state.key),
  update(shown) {
    const { view, query, key, side: direction } = state.state;
    beside.update(shown);
    beside.strips.update(shown.index);
    if (view !== "head") legend.update(shown, null, 0);
    const told = view === "head" ? side.words(shown) : words.tokenText(shown, direction, direction === "looks" ? query : key);
    shell.say(`${run.headName(facts.heads[shown.index])}: ${told}`);
  },
  moved(shot) {
    beside.small.draw(shot.head);
    beside.small.moved(shot);
    legend.update(shot.head, shot, heat.level(shot));
  },
};

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

// A head that is pointed at, or reached by the keyboard, in the matrix.
async function lookAt(i) {
  beside.strips.update(i);
  const shown = await data.thumbnail(state.state.sequence, i);
  if (state.state.view !== "matrix") return;
  beside.small.draw(shown);
  legend.update(shown, null, 0);
}

function openHead(i) {
  state.set({ head: i, view: "head", chosen: null });
  views.head.focus();
}

function showView(name) {
  shell.showTab(name);
  beside.show(name);
  const plain = name === "trace" || name === "lines";
  byId("aside").hidden = name === "trace";
  byId("legend").hidden = byId("scale-label").hidden = byId("curve-label").hidden = plain;
  byId("pixel-label").hidden = plain || run.single;
  byId("statistic-label").hidden = name !== "head";
}

// Which heads look from the pinned query to the pinned key.
let asked = 0;
async function rankHeads() {
  const own = ++asked;
  const { view, pinned, sequence, query, key } = state.state;
  if (view !== "head" || !pinned || facts.heads.length < 2) {
    beside.across.update(null);
    return;
  }
  const found = await matrix.ofCell(sequence, query, key);
  if (own === asked) beside.across.update(found.sort((a, b) => (b.weight ?? -1) - (a.weight ?? -1) || a.index - b.index));
}

// ── moving ──

function tokenBy(name, by) {
  const { sequence, view } = state.state;
  const domain = data.domainOf(sequence);
  const [from, end] = view !== "head" ? run.real(sequence, name)
    : name === "query" ? [domain.query, domain.endQuery] : [domain.key, domain.endKey];
  if (end > from) shell.change({ [name]: Math.min(end - 1, Math.max(from, state.state[name] + by)) });
}

function arrow(key, fine) {
  const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  const { view, side: direction } = state.state;
  const name = direction === "seen" ? "key" : "query";
  if (view === "head") {
    const stride = fine ? 1 : views.head.stride(dx ? "x" : "y");
    tokenBy(dx ? "key" : "query", (dx || dy) * stride);
  } else if (view === "text") {
    /** @type {HTMLElement} */
    const list = document.querySelector(`.text-view .sentence[data-text="${facts.cross && name === "key" ? "keys" : "queries"}"]`);
    tokenBy(name, dy || (list.dir === "rtl" ? -dx : dx));
  } else if (view === "lines" && dx) {
    shell.change({ side: dx < 0 ? "looks" : "seen" });
    /** @type {HTMLElement} */
    const list = document.querySelector(`.tokens[data-text="${dx < 0 ? "queries" : "keys"}"]`);
    list.focus(/** @type {any} */ ({ focusVisible: true }));
  } else if (view === "lines") {
    tokenBy(name, dy);
  } else return false;
  return true;
}

async function top(query) {
  const { sequence, head: index } = state.state;
  return (await data.cells(sequence, index)).top(query);
}

// To the next of the row's largest weights.
async function along(by) {
  const { query, key } = state.state;
  const found = await top(query);
  if (!found.length) return;
  const now = found.findIndex(({ at }) => at === key);
  const next = now < 0 ? (by > 0 ? 0 : found.length - 1) : (now + by + found.length) % found.length;
  shell.change({ key: found[next].at, pinned: true });
}

// The key becomes the query, which looks at its own largest weight.
async function follow() {
  if (facts.cross) return;
  const { key } = state.state;
  const [first] = await top(key);
  shell.change({ query: key, key: first ? first.at : key, pinned: true });
}

const onHead = (act) => () => { if (state.state.view === "head") act(); };
shell.listen({
  "+": onHead(() => views.head.zoomBy(2)),
  "=": onHead(() => views.head.zoomBy(2)),
  "-": onHead(() => views.head.zoomBy(1 / 2)),
  0: onHead(() => views.head.fit()),
  z: onHead(() => views.head.read()),
  ".": onHead(() => along(1)),
  ",": onHead(() => along(-1)),
  f: onHead(follow),
  m: () => state.set({ pixel: state.state.pixel === "mean" ? "largest" : "mean" }),
  r: () => state.set({ side: state.state.side === "looks" ? "seen" : "looks" }),
}, arrow);

// Places where words stand one after the other: the last may go on, as one still types. `#12` is a place.
function matches(wanted) {
  const { sequence } = state.state;
  const place = wanted.match(/^#\s*([\d\s,.\u202f]+)$/);
  if (place) {
    const [from, end] = run.real(sequence, "query");
    const at = from + Number(place[1].replace(/\D/g, ""));
    return at < end ? [{ name: "query", at }] : [];
  }
  const wants = wanted.split(/\s+/);
  const found = [];
  for (const [name, all] of [["query", run.queryTokens(sequence)], ["key", run.keyTokens(sequence)]].slice(0, facts.cross ? 2 : 1)) {
    const [from, end] = run.real(sequence, name);
    const lower = all.map((token) => `${token}\n${tokens.visible(token)}`.toLowerCase());
    const fits = (text, word, isLast) => (isLast ? text.includes(word) : text.split("\n").some((one) => one.replace(/^[\sĠ▁]/u, "") === word));
    for (let at = from; at + wants.length <= end; at++) {
      if (wants.every((word, i) => fits(lower[at + i], word, i === wants.length - 1))) found.push({ name, at });
    }
  }
  return found;
}

// The query that was found, and in a long text the key that it looks at most; a key of another text, as it stands.
const search = shell.finder(matches, async ({ name, at }) => {
  const view = ["matrix", "trace"].includes(state.state.view) ? "head" : state.state.view;
  const [first] = run.single ? [] : await top(at);
  shell.change({ [name]: at, ...(name === "query" && first ? { key: first.at } : {}), side: name === "query" ? "looks" : "seen", pinned: true, view });
});

// ── together ──

// The tab is named after what it shows: the head, the text, the source.
function title() {
  const { view, sequence, head: index } = state.state;
  const opening = tokens.asText(facts.sequences[sequence].opening).map(({ space, text: one }) => (space ? " " : "") + one).join("");
  const name = view === "trace" || view === "matrix" ? "" : run.headName(facts.heads[index]);
  return [name, tokens.shorten(opening, 40), tokens.shorten(tokens.visible(facts.source).replaceAll("␣", " "), 60), "attnviz"].filter((part) => part && part !== "∅").join(" · ");
}

async function update(changed, all) {
  const { view, head: index, sequence } = state.state;
  if (changed.has("view")) showView(view);
  if (["sequence", "head", "view"].some((name) => changed.has(name))) {
    document.title = title();
    beside.strips.update(index);
  }
  const looked = view === "matrix" && ["sequence", "view", "scale", "curve", "pixel"].some((name) => changed.has(name));
  if (looked) lookAt(index);
  if (["pinned", "view", "sequence"].some((name) => changed.has(name)) || (state.state.pinned && ["query", "key", "head"].some((name) => changed.has(name)))) shell.busyWhile(rankHeads());
  await views[view].update(all);
  if (changed.has("sequence")) {
    await run.openTokens(sequence);
    search();
  }
}

try {
  shell.begin(update, `${facts.stored[0].toUpperCase()}${facts.stored.slice(1)}. Exact zeros stay exact.`);
} catch (error) {
  shell.fail(error);
}
