// What is being looked at, kept in the address's fragment, so that a link opens the same view.

import * as run from "./run.js";

const optionsOf = (id) => Array.from(document.querySelectorAll(`#${id} option`), (option) => option.getAttribute("value"));

export const VIEWS = Array.from(document.querySelectorAll('#tabs [role="tab"]'), (tab) => tab.id.slice(4));

// What is chosen from lists; the first of each is what the page starts with.
const startingWith = (first, all) => (all.includes(first) ? [first, ...all.filter((one) => one !== first)] : all);
export const CHOICES = {
  scale: startingWith(run.facts.scale, run.single ? optionsOf("scale") : ["all", "head"]),
  curve: startingWith(run.facts.curve, run.single ? ["linear", "root", "log"] : ["log", "linear", "root"]),
  pixel: optionsOf("pixel"),
  statistic: Object.keys(run.facts.statistics),
  sort: ["place", "up", "down"],
  measure: [...Object.keys(run.facts.measures), "cell"],
  side: ["looks", "seen"],
};

const FIRST_VIEW = run.facts.heads.length > 1 ? VIEWS[0] : VIEWS[1];

/** @type {Record<string, any>} */
export const state = {
  view: FIRST_VIEW,
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
  const moves = changed.includes("view"); // Back and Forward go through the views
  if (moves) write();
  Object.assign(state, changes);
  if (changed.includes("sequence") && !("query" in changes)) start();
  for (const react of listeners) react(new Set(changed));
  clearTimeout(timer); // browsers refuse an address that changes with every movement of a mouse
  if (moves) write("pushState");
  else timer = setTimeout(() => write(), 250);
}

// The token to begin with: the first one; under masks the last one, which mostly sees more.
export function start() {
  const one = run.facts.sequences[state.sequence];
  const masked = run.facts.masks.some((mask) => mask !== "padding");
  state.query = Math.min(masked ? Math.max(0, one.queryReal[1] - 1) : one.queryReal[0], run.facts.queries - 1);
  state.key = Math.min(one.keyReal[0], run.facts.keys - 1);
  state.pinned = false;
}

function write(how = "replaceState") {
  clearTimeout(timer);
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
  history[how === "pushState" ? how : "replaceState"](null, "", written);
}

function whole(text, below, otherwise) {
  return /^\d{1,6}$/.test(text ?? "") && Number(text) < below ? Number(text) : otherwise;
}

function oneOf(text, known, otherwise) {
  return known.includes(text) ? text : otherwise;
}

// Take the state from the fragment. A head that it does not name, or names wrongly, stays; other things are as at first.
export function read() {
  if (location.hash === written) return;
  written = location.hash;
  const given = new URLSearchParams(location.hash.slice(1));
  const { facts } = run;
  const changes = {};
  const sequence = facts.sequences.findIndex((s) => String(s.index) === given.get("sequence"));
  if (sequence >= 0) state.sequence = sequence;
  start();
  const [layer, number] = facts.heads[state.head].map((own, i) => given.get(["layer", "head"][i]) ?? String(own));
  const wanted = facts.heads.findIndex(([l, h]) => String(l) === layer && String(h) === number);
  if (wanted >= 0) changes.head = wanted;
  const alias = given.get("view") === "map" ? "head" : given.get("view"); // links to pages of version 0.1
  changes.view = oneOf(alias, VIEWS, given.get("view") === null ? FIRST_VIEW : state.view);
  changes.query = whole(given.get("query"), facts.queries, state.query);
  changes.key = whole(given.get("key"), facts.keys, state.key);
  changes.pinned = given.get("pinned") === "1";
  for (const [name, known] of Object.entries(CHOICES)) changes[name] = oneOf(given.get(name), known, known[0]);
  changes.low = whole(given.get("low"), 101, 0);
  changes.high = whole(given.get("high"), 101, 100);
  changes.threshold = whole(given.get("threshold"), 101, 10);
  changes.place = /^\d{1,7}\.\d{1,7}\.\d{1,7}$/.test(given.get("place")) ? given.get("place") : "";
  const chosen = (given.get("heads") ?? "").split(".").map((text) => whole(text, facts.headsPerLayer, -1));
  changes.chosen = given.get("heads") && !chosen.includes(-1) ? chosen : null;
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
