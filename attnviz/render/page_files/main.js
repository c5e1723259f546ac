// The page of a run: its views, what they share, and how they learn of changes.

import * as tokens from "./tokens.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as parts from "./parts.js";
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

function say(shown) {
  const { view, query, key, side: direction } = state.state;
  const words = view === "head" ? parts.cellText(shown, query, key) : parts.tokenText(shown, direction, direction === "looks" ? query : key);
  shell.say(`${run.headName(facts.heads[shown.index])}: ${words}`);
}

const views = {
  matrix: matrix.view(openHead, lookAt, run.head, parts.fillCanvas),
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
  shell.showTab(name);
  beside.cell.hidden = !PARTS_OF_CARD[name].includes("cell");
  beside.preview.root.hidden = !PARTS_OF_CARD[name].includes("preview");
  beside.looks.root.hidden = beside.seen.root.hidden = !PARTS_OF_CARD[name].includes("lists");
  byId("aside").hidden = name === "trace";
  byId("legend").hidden = name === "trace" || name === "lines";
  byId("scale-label").hidden = byId("curve-label").hidden = name === "trace" || name === "lines";
}

// ── moving ──

function tokenBy(name, by) {
  const one = facts.sequences[state.state.sequence];
  const [from, end] = state.state.view === "head"
    ? [0, name === "query" ? facts.queries : facts.keys]
    : name === "query" ? one.queryReal : one.keyReal;
  if (end <= from) return;
  shell.change({ [name]: Math.min(end - 1, Math.max(from, state.state[name] + by)) });
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
      shell.change({ side: dx < 0 ? "looks" : "seen" });
      to.focus({ focusVisible: true });
    } else tokenBy(direction === "seen" ? "key" : "query", dy);
    return true;
  }
  return false;
}

shell.listen({ r: () => state.set({ side: state.state.side === "looks" ? "seen" : "looks" }) }, arrow);

function matches(wanted) {
  const one = facts.sequences[state.state.sequence];
  const found = (all, name, [start, end]) => all
    .map((token, at) => ({ name, at, fits: `${token}\n${tokens.visible(token)}`.toLowerCase().includes(wanted) }))
    .filter(({ at, fits }) => fits && at >= start && at < end);
  return [
    ...found(run.queryTokens(state.state.sequence), "query", one.queryReal),
    ...(facts.cross ? found(run.keyTokens(state.state.sequence), "key", one.keyReal) : []),
  ];
}

const search = shell.finder(matches, ({ name, at }) => {
  const view = ["matrix", "trace"].includes(state.state.view) ? "head" : state.state.view;
  shell.change({ [name]: at, side: name === "query" ? "looks" : "seen", pinned: true, view });
});

// ── together ──

function update(changed, all) {
  const { view, head: index } = state.state;
  if (changed.has("view")) showView(view);
  if (changed.has("sequence")) search();
  if (["sequence", "head", "view"].some((name) => changed.has(name))) {
    document.title = view === "trace" || view === "matrix" ? "attnviz" : `${run.headName(facts.heads[index])} · attnviz`;
    beside.strips.update(index);
  }
  if (view === "matrix") legend.update(null);
  const looked = view === "matrix" && !(changed.size === 1 && changed.has("head"));
  return Promise.all([views[view].update(all), looked ? lookAt(index) : null]);
}

try {
  shell.begin(update, `Weights on this page are rounded: the largest error is ${facts.error.toPrecision(2)}; exact zeros stay exact.`);
} catch (error) {
  shell.fail(error);
}
