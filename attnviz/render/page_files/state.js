// What is being looked at, kept in the address's fragment, so that a link opens the same view.

import * as run from "./run.js";

const optionsOf = (id) => Array.from(document.querySelectorAll(`#${id} option`), (option) => option.value);

export const VIEWS = Array.from(document.querySelectorAll('#tabs [role="tab"]'), (tab) => tab.id.slice(4));

// What is chosen from lists, of which a page has some; the first of each is what it starts with.
const CHOICES = {
  scale: optionsOf("scale"),
  curve: optionsOf("curve"),
  pixel: optionsOf("pixel"),
  statistic: optionsOf("statistic"),
  sort: ["place", "up", "down"],
  measure: Object.keys(run.facts.measures),
  side: ["looks", "seen"],
};

export const state = {
  view: run.facts.heads.length > 1 ? VIEWS[0] : VIEWS[1],
  sequence: 0,
  head: 0,
  query: 0,
  key: 0,
  pinned: false,
  ...Object.fromEntries(Object.entries(CHOICES).map(([name, [first]]) => [name, first])),
  low: 0, // the filter, in percent of the measure's range
  high: 100,
  threshold: 10, // percent of the largest weight
  chosen: null, // heads drawn as lines; null: a choice of ours
  place: "", // what part of a long map is seen: its key and query in the corner, and the zoom in percent
};

const listeners = [];
let timer = 0;
let written = "";

export function onChange(react) {
  listeners.push(react);
}

// Change some of the state and tell everybody what changed.
export function set(changes) {
  const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  if (!changed.length) return;
  Object.assign(state, changes);
  if (changed.includes("sequence") && !("query" in changes)) start();
  for (const react of listeners) react(new Set(changed));
  clearTimeout(timer); // browsers refuse an address that changes with every movement of a mouse
  timer = setTimeout(write, 250);
}

// The token to begin with: the first one; under masks the last one, which mostly sees more.
export function start() {
  const one = run.facts.sequences[state.sequence];
  const masked = run.facts.masks.some((mask) => mask !== "padding");
  state.query = Math.min(masked ? Math.max(0, one.queryReal[1] - 1) : one.queryReal[0], run.facts.queries - 1);
  state.key = Math.min(one.keyReal[0], run.facts.keys - 1);
  state.pinned = false;
}

function write() {
  const [layer, number] = run.facts.heads[state.head];
  const parts = { view: state.view, sequence: run.facts.sequences[state.sequence].index, layer, head: number };
  Object.assign(parts, { query: state.query, key: state.key });
  if (state.pinned) parts.pinned = 1;
  for (const [name, [first]] of Object.entries(CHOICES)) if (state[name] !== first) parts[name] = state[name];
  if (state.low > 0) parts.low = state.low;
  if (state.high < 100) parts.high = state.high;
  if (state.threshold !== 10) parts.threshold = state.threshold;
  if (state.place) parts.place = state.place;
  if (state.chosen) parts.heads = state.chosen.join(".");
  written = `#${new URLSearchParams(parts)}`;
  history.replaceState(null, "", written);
}

function whole(text, below, otherwise) {
  return /^\d{1,6}$/.test(text ?? "") && Number(text) < below ? Number(text) : otherwise;
}

function oneOf(text, known, otherwise) {
  return known.includes(text) ? text : otherwise;
}

// Take the state from the fragment. What it does not say, or says wrongly, stays as it is.
export function read() {
  if (location.hash === written) return;
  const given = new URLSearchParams(location.hash.slice(1));
  const { facts } = run;
  const changes = {};
  const sequence = facts.sequences.findIndex((s) => String(s.index) === given.get("sequence"));
  if (sequence >= 0) state.sequence = sequence;
  start();
  const [layer, number] = facts.heads[state.head].map((own, i) => given.get(["layer", "head"][i]) ?? String(own));
  const wanted = facts.heads.findIndex(([l, h]) => String(l) === layer && String(h) === number);
  if (wanted >= 0) changes.head = wanted;
  changes.view = oneOf(given.get("view"), VIEWS, state.view);
  changes.query = whole(given.get("query"), facts.queries, state.query);
  changes.key = whole(given.get("key"), facts.keys, state.key);
  changes.pinned = given.get("pinned") === "1";
  for (const [name, known] of Object.entries(CHOICES)) changes[name] = oneOf(given.get(name), known, state[name]);
  changes.low = whole(given.get("low"), 101, state.low);
  changes.high = whole(given.get("high"), 101, state.high);
  changes.threshold = whole(given.get("threshold"), 101, state.threshold);
  if (/^\d{1,7}\.\d{1,7}\.\d{1,7}$/.test(given.get("place"))) changes.place = given.get("place");
  const chosen = (given.get("heads") ?? "").split(".").map((text) => whole(text, facts.headsPerLayer, -1));
  if (given.get("heads") && !chosen.includes(-1)) changes.chosen = chosen;
  Object.assign(state, changes);
  for (const react of listeners) react(new Set([...Object.keys(changes), "sequence"]));
}

// The head one or more places on, in the order of the page; the ends are stops.
export function stepHead(by) {
  const to = Math.min(run.facts.heads.length - 1, Math.max(0, state.head + by));
  set({ head: to, chosen: null });
}

// The same head number in the next layer that has it.
export function stepLayer(by) {
  const [layer, number] = run.facts.heads[state.head];
  const order = by > 0 ? 1 : -1;
  const found = run.facts.heads
    .map(([l, h], i) => ({ l, h, i }))
    .filter(({ l }) => Math.sign(l - layer) === order)
    .sort((a, b) => Math.abs(a.l - layer) - Math.abs(b.l - layer) || Math.abs(a.h - number) - Math.abs(b.h - number));
  if (found.length) set({ head: found[0].i, chosen: null });
}
