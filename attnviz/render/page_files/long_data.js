// The data of a long map: an image pyramid, the numbers of each row, single weights; opened when needed.

import * as run from "./run.js";

const { facts } = run;
const [FORBIDDEN, ZERO, TINY, FIRST, BROKEN] = [0, 1, 2, 3, 255];
const KEPT_BYTES = 2 ** 28; // opened blocks that stay in memory

// ── blocks ──

const opened = new Map();
let bytes = 0;

function block(i) {
  const known = opened.get(i);
  opened.delete(i);
  opened.set(i, known ?? run.unpack(document.getElementById(`d${i}`).textContent).then((data) => {
    bytes += data.length;
    for (const [other, promise] of opened) {
      if (bytes <= KEPT_BYTES || other === i) break;
      opened.delete(other);
      promise.then((old) => { bytes -= old.length; });
    }
    return data;
  }));
  return opened.get(i);
}

// Whole numbers that stand as planes: the lowest byte of all of them, then the next.
function whole(data, width) {
  const count = data.length / width;
  const Kind = width === 1 ? Uint8Array : width === 2 ? Uint16Array : Uint32Array;
  const numbers = new Kind(count);
  for (let plane = 0; plane < width; plane++) {
    for (let i = 0, from = plane * count; i < count; i++) numbers[i] += data[from + i] * 2 ** (8 * plane);
  }
  return numbers;
}

// Whole numbers that stand as their differences, each from the one before, in planes.
function running(data) {
  const numbers = Int32Array.from(whole(data, 4));
  for (let i = 1; i < numbers.length; i++) numbers[i] += numbers[i - 1];
  return numbers;
}

// The tokens of a sequence, which the page's other parts find where a short run has them.
export async function openTokens(sequence) {
  const one = facts.sequences[sequence];
  if (one.queryTokens) return;
  const [queries, keys] = await Promise.all(one.tokens.map(async (i) => JSON.parse(new TextDecoder().decode(await block(i)))));
  one.keyTokens = keys;
  one.queryTokens = queries;
}

// ── a head ──

// One head of one sequence. Places are those of tokens, the pixel of place p is floor(p / cells).
class LongHead {
  constructor(sequence, index) {
    this.sequence = sequence;
    this.index = index;
    this.one = facts.sequences[sequence];
    this.own = this.one.heads[index];
    [this.layer, this.head] = facts.heads[index];
    [this.firstQuery, this.endQuery] = this.one.queryReal;
    [this.firstKey, this.endKey] = this.one.keyReal;
    this.levels = { mean: [], largest: [] };
    this.details = new Map();
    this.detailRows = new Set(this.own.details.map(([row]) => row));
    this.detailBlocks = new Map(this.own.details.map(([row, column, i]) => [`${row}.${column}`, i]));
    this.sums = {};
  }

  async open() {
    const { top, statistics, spans } = this.own;
    const last = facts.levels.length - 1;
    await Promise.all([this.openLevel("mean", last), this.openLevel("largest", last), openTokens(this.sequence)]);
    if (top) {
      const [keys, weights] = await Promise.all([block(top.keys), block(top.weights)]);
      this.keys = whole(keys, top.width);
      this.weights = whole(weights, 2);
      for (let i = facts.queries; i < this.weights.length; i++) this.weights[i] = this.weights[i - facts.queries] - this.weights[i];
    }
    if (spans) [this.first, this.end] = await Promise.all(spans.map(async (i) => running(await block(i))));
    this.statistics = Object.fromEntries(await Promise.all(Object.entries(statistics)
      .map(async ([name, { block: i, width }]) => [name, whole(await block(i), width)])));
    return this;
  }

  async openLevel(kind, level) {
    this.levels[kind][level] ??= await block(this.own[kind].levels[level]);
    return this.levels[kind][level];
  }

  async openDetail(row, column) {
    const key = `${row}.${column}`;
    this.details.set(key, await block(this.detailBlocks.get(key)));
  }

  async openCounts() {
    this.counts ??= whole(await block(this.own.counts), this.own.countBytes);
  }

  value(kind, code) {
    if (code === BROKEN) return NaN;
    return code < FIRST ? 0 : this.own[kind].low * this.own[kind].ratio ** (code - FIRST);
  }

  // The byte of the finest pixel over a cell, null while it is not opened yet.
  pixel(kind, q, k) {
    const codes = this.levels[kind][0];
    if (!codes) return null;
    return codes[Math.floor(q / facts.cells[0]) * facts.levels[0][1] + Math.floor(k / facts.cells[1])];
  }

  // How many cells of the finest pixel are allowed, and how many it has.
  countsAt(q, k) {
    const [row, column] = [Math.floor(q / facts.cells[0]), Math.floor(k / facts.cells[1])];
    const size = (at, cells, end) => Math.min(end, (at + 1) * cells) - at * cells;
    return {
      allowed: this.counts?.[row * facts.levels[0][1] + column] ?? null,
      all: size(row, facts.cells[0], facts.queries) * size(column, facts.cells[1], facts.keys),
    };
  }

  // The byte of a cell where it is known by itself, else -1.
  cellCode(q, k) {
    const size = facts.detail;
    const part = this.details.get(`${Math.floor(q / size)}.${Math.floor(k / size)}`);
    if (!part) return -1;
    const width = Math.min(size, facts.keys - Math.floor(k / size) * size);
    return part[(q % size) * width + (k % size)];
  }

  // The largest weights of a row: [{ at, weight }], largest first.
  top(q) {
    if (!this.keys) return [];
    const found = [];
    for (let i = q; i < this.keys.length && this.keys[i]; i += facts.queries) {
      found.push({ at: this.keys[i] - 1, weight: this.own.top.low * this.own.top.ratio ** (this.weights[i] - 1) });
    }
    return found;
  }

  // Whether the query sees no key at all; false where that is not known.
  isBlind(q) {
    if (this.first) return this.end[q] <= this.first[q];
    return Boolean(this.keys) && !this.keys[q] && this.statistic("largest", q) === 0;
  }

  statistic(name, q) {
    const { low, ratio, width } = this.own.statistics[name];
    const code = this.statistics[name][Math.floor(q / facts.rowsEach)];
    if (code === 2 ** (8 * width) - 1) return NaN;
    return code === 0 ? 0 : low * ratio ** (code - 1);
  }

  // Whether a statistic is more than 0, and less than can be told.
  isTiny(name, q) {
    return this.own.statistics[name].tiny && this.statistics[name][Math.floor(q / facts.rowsEach)] === 1;
  }

  // The mean of a statistic over rows from … end, of those that are numbers.
  meanOf(name, from, end) {
    if (!this.sums[name]) {
      const sums = new Float64Array(facts.queries + 1);
      const counts = new Float64Array(facts.queries + 1);
      for (let q = 0; q < facts.queries; q++) {
        const value = this.statistic(name, q);
        const counted = !Number.isNaN(value) && !this.isBlind(q);
        sums[q + 1] = sums[q] + (counted ? value : 0);
        counts[q + 1] = counts[q] + counted;
      }
      this.sums[name] = { sums, counts };
    }
    const { sums, counts } = this.sums[name];
    return (sums[end] - sums[from]) / (counts[end] - counts[from]);
  }

  // What is known of a cell: its `name` (exact, forbidden, blind, broken, pixel), and its `weight` or what it is `below`.
  cell(q, k) {
    if (this.isBlind(q)) return { name: "blind" };
    const listed = this.top(q);
    const found = listed.find(({ at }) => at === k);
    if (found) return { name: "exact", weight: found.weight, listed: true };
    const pixel = this.pixel("mean", q, k);
    const code = facts.cells[0] * facts.cells[1] === 1 ? pixel : this.cellCode(q, k);
    if (code === FORBIDDEN || pixel === FORBIDDEN || (this.first && (k < this.first[q] || k >= this.end[q]))) return { name: "forbidden" };
    if (code === BROKEN || pixel === BROKEN) return { name: "broken" };
    const scale = facts.cells[0] * facts.cells[1] === 1 ? "mean" : "cell";
    if (code !== null && code >= 0) return { name: "exact", weight: this.value(scale, code), low: this.own[scale].low, tiny: code === TINY, zero: code === ZERO };
    const { allowed, all } = this.countsAt(q, k);
    const unsure = !this.first && allowed !== all; // whether the cell is one of those that are allowed
    if (facts.top && listed.length < facts.top) return { name: "exact", weight: 0, zero: true, unsure };
    return { name: "pixel", below: listed.length ? listed.at(-1).weight : null, unsure };
  }
}

const heads = new Map();

// Open a head: its coarsest level and its rows.
export function head(sequence, index) {
  const key = `${sequence}.${index}`;
  const known = heads.get(key);
  heads.delete(key);
  heads.set(key, known ?? new LongHead(sequence, index).open());
  if (heads.size > 8) heads.delete(heads.keys().next().value);
  return heads.get(key);
}

// The coarsest level of a head, which a thumbnail needs; its rows stay closed.
export async function thumbnail(sequence, index) {
  const shown = new LongHead(sequence, index);
  const last = facts.levels.length - 1;
  await Promise.all([shown.openLevel("mean", last), shown.openLevel("largest", last)]);
  return shown;
}
