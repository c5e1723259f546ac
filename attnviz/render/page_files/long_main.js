// The page of a long run: its views, what they share, and how they learn of changes.

import * as tokens from "./tokens.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as parts from "./parts.js";
import * as matrix from "./matrix.js";
import * as trace from "./trace.js";
import * as shell from "./shell.js";
import * as long_data from "./long_data.js";
import * as long_colours from "./long_colours.js";
import * as long_heat from "./long_heat.js";
import * as long_map from "./long_map.js";
import * as long_card from "./long_card.js";

const { facts } = run;
const { byId } = shell;

// ── views ──

const card = long_card.beside({
  onLink: (key) => shell.change({ key, pinned: true }),
  onFollow: follow,
  onPlace: (x, y) => views.map.goTo(x, y),
});
const legend = long_card.legend();
const side = {
  busyWhile: shell.busyWhile,
  words: (head) => long_card.cellText(head, state.state.query, state.state.key),
  update(head) {
    card.update(head);
    shell.say(`${run.headName(facts.heads[head.index])}: ${side.words(head)}`);
  },
  moved(shot) {
    card.small.draw(shot.head);
    card.small.moved(shot);
    legend.update(shot.head, shot, long_heat.level(shot));
  },
};

const views = {
  matrix: matrix.view(openHead, lookAt, long_data.thumbnail, long_colours.fillCanvas),
  map: long_map.view(side),
  trace: trace.view(),
};
for (const [name, view] of Object.entries(views)) byId(`panel-${name}`).append(view.root);
byId("aside").append(card.root);
byId("legend").append(legend.root);

// A head that is pointed at, or reached by the keyboard, in the matrix.
async function lookAt(i) {
  card.strips.update(i);
  const head = await long_data.thumbnail(state.state.sequence, i);
  if (state.state.view !== "matrix") return;
  card.small.draw(head);
  legend.update(head, null, 0);
}

function openHead(i) {
  state.set({ head: i, view: "map" });
  views.map.focus();
}

function showView(name) {
  shell.showTab(name);
  card.showMap(name === "map");
  card.small.root.classList.toggle("large", name === "matrix");
  byId("aside").hidden = byId("legend").hidden = name === "trace";
  for (const label of ["pixel", "scale", "curve"]) byId(`${label}-label`).hidden = name === "trace";
  byId("statistic-label").hidden = name !== "map";
}

// ── moving ──

function real(name) {
  const one = facts.sequences[state.state.sequence];
  return name === "query" ? one.queryReal : one.keyReal;
}

function arrow(key, fine) {
  if (state.state.view !== "map") return false;
  const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  const [name, along, by] = dx ? ["key", "x", dx] : ["query", "y", dy];
  const [from, end] = real(name);
  if (end <= from) return true;
  const to = state.state[name] + by * (fine ? 1 : views.map.stride(along));
  shell.change({ [name]: Math.min(end - 1, Math.max(from, to)) });
  return true;
}

// To the next of the row's largest weights.
async function along(by) {
  const { sequence, head: index, query, key } = state.state;
  const found = (await long_data.head(sequence, index)).top(query);
  if (!found.length) return;
  const now = found.findIndex(({ at }) => at === key);
  const next = now < 0 ? (by > 0 ? 0 : found.length - 1) : (now + by + found.length) % found.length;
  shell.change({ key: found[next].at, pinned: true });
}

// The key becomes the query, which looks at its own largest weight.
async function follow() {
  if (facts.cross) return;
  const { sequence, head: index, key } = state.state;
  const [first] = (await long_data.head(sequence, index)).top(key);
  shell.change({ query: key, key: first ? first.at : key, pinned: true });
}

const onMap = (act) => () => { if (state.state.view === "map") act(); };
shell.listen({
  "+": onMap(() => views.map.zoomBy(2)),
  "=": onMap(() => views.map.zoomBy(2)),
  "-": onMap(() => views.map.zoomBy(1 / 2)),
  0: onMap(() => views.map.fit()),
  z: onMap(() => views.map.read()),
  ".": onMap(() => along(1)),
  ",": onMap(() => along(-1)),
  f: onMap(follow),
  m: () => state.set({ pixel: state.state.pixel === "mean" ? "largest" : "mean" }),
}, arrow);

// Places where words stand one after the other: the last may go on, as one still types. `#12` is a place.
function matches(wanted) {
  const texts = [["query", run.queryTokens(state.state.sequence)], ["key", run.keyTokens(state.state.sequence)]];
  const place = wanted.match(/^#\s*([\d\s,.\u202f]+)$/);
  if (place) {
    const at = real("query")[0] + Number(place[1].replace(/\D/g, ""));
    return at < real("query")[1] ? [{ name: "query", at }] : [];
  }
  const words = wanted.split(/\s+/);
  const found = [];
  for (const [name, all] of texts.slice(0, facts.cross ? 2 : 1)) {
    if (!all) continue; // they are still being opened
    const [from, end] = real(name);
    const lower = all.map((token) => `${token}\n${tokens.visible(token)}`.toLowerCase());
    for (let at = from; at + words.length <= end; at++) {
      if (words.every((word, i) => (i === words.length - 1 ? lower[at + i].includes(word) : lower[at + i].split("\n").some((one) => one.replace(/^[\sĠ▁]/u, "") === word)))) found.push({ name, at });
    }
  }
  return found;
}

// The query that was found, and the key that it looks at most; a key of another text, as it stands.
const search = shell.finder(matches, async ({ name, at }) => {
  const { sequence, head: index } = state.state;
  const [first] = (await long_data.head(sequence, index)).top(at);
  shell.change({ [name]: at, ...(name === "query" && first ? { key: first.at } : {}), pinned: true, view: "map" });
});

// ── together ──

async function update(changed, all) {
  const { view, head: index, sequence } = state.state;
  if (changed.has("view")) showView(view);
  if (["sequence", "head", "view"].some((name) => changed.has(name))) {
    document.title = view === "map" ? `${run.headName(facts.heads[index])} · attnviz` : "attnviz";
    card.strips.update(index);
  }
  const looked = view === "matrix" && !(changed.size === 1 && changed.has("head"));
  if (looked) lookAt(index);
  await views[view].update(all);
  if (changed.has("sequence")) {
    await long_data.openTokens(sequence);
    search();
  }
}

try {
  byId("find").placeholder = "Words or #place  /";
  shell.begin(update, `${facts.stored[0].toUpperCase()}${facts.stored.slice(1)}. Pixels are within ${parts.measureText(100 * facts.error)} % of what they stand for; listed weights are exact to three digits; exact zeros stay exact.`);
} catch (error) {
  shell.fail(error);
}
