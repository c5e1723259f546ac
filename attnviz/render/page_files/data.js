// A head of the run: pixels of several levels, numbers of each row, single weights; opened when needed.

import * as run from "./run.js";

const { facts, single } = run;
const { block, whole, running, valuesOf } = run;
const { FORBIDDEN, ZERO, TINY, FIRST } = run.CODES;
const { BROKEN } = run;
export const PADDING = BROKEN - 1; // no code of the page's data: it is put in when a head is opened
const WIDTH = facts.fine ? 2 : 1;
const LAST = facts.levels.length - 1;

// What is drawn of a sequence: the real tokens; where each pixel is a cell, padding as well, unless it takes most of
// the room: then two places of it.
export function domainOf(sequence) {
  const { queryReal: [query, endQuery], keyReal: [key, endKey] } = facts.sequences[sequence];
  if (endQuery <= query || endKey <= key) return { query: 0, endQuery: single ? facts.queries : 0, key: 0, endKey: single ? facts.keys : 0 };
  const most = (endQuery - query) * (endKey - key) * 2 > facts.queries * facts.keys ? Infinity : 2;
  const more = single ? most : 0;
  return {
    query: Math.max(0, query - more), endQuery: Math.min(facts.queries, endQuery + more),
    key: Math.max(0, key - more), endKey: Math.min(facts.keys, endKey + more),
  };
}

// Places are those of tokens, the pixel of place p is floor(p / cells).
class Head {
  /** @type {number} */ layer;
  /** @type {number} */ head;
  /** @type {number} */ firstQuery;
  /** @type {number} */ endQuery;
  /** @type {number} */ firstKey;
  /** @type {number} */ endKey;
  /** @type {ArrayLike<number> | null} */ keys = null;
  /** @type {Uint16Array | null} */ weights = null;
  /** @type {Int32Array | null} */ first = null;
  /** @type {Int32Array | null} */ end = null;
  /** @type {Uint8Array | null} */ mask = null;
  /** @type {any} */ raw = null;
  /** @type {ArrayLike<number> | null} */ counts = null;
  /** @type {Record<string, ArrayLike<number>>} */ statistics = {};
  /** @type {any[]} */ masks = [];

  /**
   * @param {number} sequence
   * @param {number} index
   */
  constructor(sequence, index) {
    this.sequence = sequence;
    this.index = index;
    this.one = facts.sequences[sequence];
    this.own = this.one.heads[index];
    [this.layer, this.head] = facts.heads[index];
    [this.firstQuery, this.endQuery] = this.one.queryReal;
    [this.firstKey, this.endKey] = this.one.keyReal;
    this.empty = this.endQuery <= this.firstQuery || this.endKey <= this.firstKey;
    this.levels = { mean: [], largest: [] };
    this.details = new Map();
    this.detailRows = new Set(this.own.details.map(([row]) => row));
    this.detailBlocks = new Map(this.own.details.map(([row, column, i]) => [`${row}.${column}`, i]));
    this.sums = {};
    this.values = { mean: valuesOf(this.own.mean), largest: valuesOf(this.kind("largest")), cell: this.own.cell && valuesOf(this.own.cell, 255) };
    this.domain = domainOf(sequence);
  }

  kind(name) {
    return (single ? this.own.mean : this.own[name]) ?? this.own.mean;
  }

  async open() {
    const { top, statistics, spans } = this.own;
    await Promise.all([...(single ? [] : [this.openLevel("largest", LAST)]), this.openLevel("mean", LAST), run.openTokens(this.sequence)]);
    if (top) {
      const [keys, weights] = await Promise.all([block(top.keys), block(top.weights)]);
      this.keys = whole(keys, top.width);
      this.weights = whole(weights, 2).slice();
      for (let i = facts.queries; i < this.weights.length; i++) this.weights[i] = this.weights[i - facts.queries] - this.weights[i];
    }
    if (spans) [this.first, this.end] = await Promise.all(spans.map(async (i) => running(await block(i))));
    this.masks = await Promise.all((this.own.masks ?? []).map(async ([reason, ...of]) => [facts.reasons[reason - 1], ...(await Promise.all(of.map(async (i) => running(await block(i)))))]));
    this.statistics = Object.fromEntries(await Promise.all(Object.entries(statistics)
      .map(async ([name, { block: i, width }]) => [name, whole(await block(i), width)])));
    return this;
  }

  async openLevel(kind, level) {
    if (this.levels[kind][level]) return;
    if (single) await this.openCells(level);
    else this.levels[kind][level] = whole(await block(this.own[kind].levels[level]), WIDTH);
  }

  // Where each pixel is a cell, coarser levels are made here.
  async openCells(level) {
    if (!this.raw) {
      const [codes, mask] = await Promise.all([block(this.own.mean.levels[0]), this.own.mask == null ? null : block(this.own.mask)]);
      this.mask = mask;
      this.raw = whole(codes, WIDTH);
      const shown = this.raw.slice();
      for (let q = 0, at = 0; q < facts.queries; q++) {
        for (let k = 0; k < facts.keys; k++, at++) {
          if (this.isPadding(q, k)) shown[at] = PADDING;
          else if (mask?.[at]) shown[at] = FORBIDDEN;
        }
      }
      this.levels.mean[0] = this.levels.largest[0] = shown;
    }
    for (let i = 1; i <= level; i++) this.levels.mean[i] = this.levels.largest[i] ??= this.pooled(i);
  }

  // The largest of each four pixels of the level before: weights win over what is forbidden, that over padding.
  pooled(level) {
    const [from, [down, across], [rows, columns]] = [this.levels.mean[level - 1], facts.levels[level], facts.levels[level - 1]];
    const made = new from.constructor(down * across).fill(PADDING);
    const negative = this.own.mean.signed ? FIRST + (this.values.mean.indexOf(0, FIRST) - FIRST) / 2 : PADDING;
    for (let y = 0, at = 0; y < rows; y++) {
      for (let x = 0; x < columns; x++, at++) {
        const code = from[at];
        if (code === PADDING) continue;
        const to = (y >> 1) * across + (x >> 1);
        const own = code >= negative && code < PADDING ? ZERO : code;
        if (made[to] === PADDING || own > made[to]) made[to] = own;
      }
    }
    return made;
  }

  async openDetail(row, column) {
    const key = `${row}.${column}`;
    this.details.set(key, await block(this.detailBlocks.get(key)));
  }

  async openCounts() {
    if (!single) this.counts ??= whole(await block(this.own.counts), this.own.countBytes);
  }

  value(kind, code) {
    return this.values[kind][code];
  }

  // How many digits of a cell's weight are correct, where each pixel is a cell; 0: it is an approximation.
  digitsOf(weight) {
    const { segments } = this.own.mean;
    return segments?.findLast(([, , bottom]) => Math.abs(weight) >= 10 ** bottom)?.[0] ?? (facts.fine ? 2 : 0);
  }

  isPadding(q, k) {
    return q < this.firstQuery || q >= this.endQuery || k < this.firstKey || k >= this.endKey;
  }

  // The code of the finest pixel over a cell, null while it is not opened yet.
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

  // The code of a cell where it is known by itself, else -1.
  cellCode(q, k) {
    const size = facts.detail;
    const part = this.details.get(`${Math.floor(q / size)}.${Math.floor(k / size)}`);
    if (!part) return -1;
    const width = Math.min(size, facts.keys - Math.floor(k / size) * size);
    return part[(q % size) * width + (k % size)];
  }

  // The largest weights of a row: [{ at, weight, digits }], largest first, with so many correct digits.
  top(q) {
    if (!this.keys) return single ? this.along("keys", q, facts.top) : [];
    const found = [];
    const { lowest } = this.own.top;
    for (let i = q; i < this.keys.length && this.keys[i]; i += facts.queries) {
      const code = this.weights[i] - 1;
      const shift = Math.floor(code / 900) + lowest - 2;
      const digits = 100 + (code % 900);
      found.push({ at: this.keys[i] - 1, weight: shift < 0 ? digits / 10 ** -shift : digits * 10 ** shift, digits: 3 });
    }
    return found;
  }

  // The largest weights of a query's row or a key's column that is known cell by cell.
  along(side, at, count) {
    const found = [];
    const [start, end] = side === "keys" ? [this.firstKey, this.endKey] : [this.firstQuery, this.endQuery];
    const outside = side === "keys" ? at < this.firstQuery || at >= this.endQuery : at < this.firstKey || at >= this.endKey;
    for (let i = start; i < end && !outside; i++) {
      const [q, k] = side === "keys" ? [at, i] : [i, at];
      const weight = this.levels.mean[0] ? this.weight(q, k) : 0;
      if (weight > 0) found.push({ at: i, weight, digits: this.digitsOf(weight) });
    }
    return found.sort((a, b) => b.weight - a.weight || a.at - b.at).slice(0, count);
  }

  // What looks at a key most: from all cells, or from the rows' own lists.
  seenBy(k, count) {
    const exact = (q) => this.top(q).find(({ at }) => at === k);
    if (single) {
      const listed = (one) => (this.keys && exact(one.at) ? { ...exact(one.at), at: one.at } : one);
      return this.along("queries", k, count).map(listed);
    }
    const found = [];
    for (let q = this.firstQuery; q < this.endQuery && this.keys; q++) {
      for (let i = q; i < this.keys.length && this.keys[i]; i += facts.queries) {
        if (this.keys[i] - 1 === k) found.push(q);
      }
    }
    const all = found.map((q) => ({ ...exact(q), at: q }));
    return all.sort((a, b) => b.weight - a.weight || a.at - b.at).slice(0, count);
  }

  // The place of a key among those that its query may see: [first, last] of those with its code, and how many.
  rank(q, k) {
    const [row, codes] = [q * facts.keys, this.levels.mean[0]];
    const own = this.weight(q, k);
    let [above, same, all] = [0, 0, 0];
    for (let j = this.firstKey; j < this.endKey; j++) {
      if (codes[row + j] === FORBIDDEN) continue;
      all++;
      const weight = this.value("mean", codes[row + j]);
      if (weight === own) same++;
      else if (weight > own) above++;
    }
    return { first: above + 1, last: above + same, all };
  }

  // Whether a query may look at a key; null where that is not known.
  allows(q, k) {
    if (single && this.raw) return !this.mask?.[q * facts.keys + k];
    if (this.first) return k >= this.first[q] && k < this.end[q];
    return this.pixel("mean", q, k) === FORBIDDEN ? false : null;
  }

  // Why a query may not look at a key: the masks that forbid it, "" where that is not known.
  reason(q, k) {
    if (single) return facts.reasons[this.mask[q * facts.keys + k] - 1];
    return this.masks.filter(([, first, end]) => k < first[q] || k >= end[q]).map(([reason]) => reason).join("; ");
  }

  // Whether the query sees no key at all; false where that is not known.
  isBlind(q) {
    if (this.first) return this.end[q] <= this.first[q];
    if (single) {
      if (!this.mask) return false;
      for (let k = 0, at = q * facts.keys; k < facts.keys; k++) if (!this.mask[at + k]) return false;
      return true;
    }
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
        counts[q + 1] = counts[q] + Number(counted);
      }
      this.sums[name] = { sums, counts };
    }
    const { sums, counts } = this.sums[name];
    return (sums[end] - sums[from]) / (counts[end] - counts[from]);
  }

  // What is known of a cell: its `name` (exact, forbidden, blind, padding, broken, pixel), and its `weight`, or what
  // it is `below`; `digits` are those that are correct, 0 for an approximation.
  cell(q, k) {
    if (this.isPadding(q, k)) return { name: "padding", weight: single ? this.value("mean", this.raw?.[q * facts.keys + k] ?? ZERO) : 0 };
    if (this.isBlind(q)) return { name: "blind" };
    const pixel = this.pixel("mean", q, k);
    if (single && this.mask?.[q * facts.keys + k]) {
      const at = q * facts.keys + k;
      return { name: "forbidden", weight: this.value("mean", this.raw[at]), reason: this.reason(q, k) };
    }
    const listed = this.keys ? this.top(q) : [];
    const found = listed.find(({ at }) => at === k);
    if (found) return { name: "exact", weight: found.weight, digits: 3, listed: true };
    const code = single ? pixel : this.cellCode(q, k);
    if (code === FORBIDDEN || pixel === FORBIDDEN || (this.first && (k < this.first[q] || k >= this.end[q]))) return { name: "forbidden", weight: 0, reason: this.reason(q, k) };
    if (pixel === BROKEN || (!single && code === 255)) return { name: "broken" };
    const scale = single ? "mean" : "cell";
    if (code !== null && code >= 0) {
      return { name: "exact", weight: this.value(scale, code), low: this.values[scale][FIRST], tiny: code === TINY, zero: code === ZERO, digits: facts.fine ? this.digitsOf(this.value(scale, code)) : 0 };
    }
    const { allowed, all } = this.countsAt(q, k);
    const unsure = !this.first && allowed !== all; // whether the cell is one of those that are allowed
    if (facts.top && listed.length < facts.top) return { name: "exact", weight: 0, zero: true, unsure };
    return { name: "pixel", below: listed.length ? listed.at(-1).weight : null, unsure };
  }

  // The weight of a cell as well as it is known: the mean of its pixel at worst; null where it is forbidden.
  weight(q, k) {
    if (single) {
      const code = this.levels.mean[0][q * facts.keys + k];
      return code === FORBIDDEN || code === PADDING ? null : this.value("mean", code);
    }
    if (this.allows(q, k) === false) return null;
    const found = this.top(q).find(({ at }) => at === k);
    if (found) return found.weight;
    const code = this.cellCode(q, k);
    if (code >= 0) return this.value("cell", code);
    const pixel = this.pixel("mean", q, k);
    return pixel === null ? 0 : this.value("mean", pixel);
  }
}

const heads = new Map();
const KEPT = single ? Math.max(16, Math.floor(2 ** 26 / (facts.queries * facts.keys))) : 12;

// Open a head: its coarsest level and its rows. A few stay open.
export function head(sequence, index) {
  const key = `${sequence}.${index}`;
  const known = heads.get(key);
  heads.delete(key);
  heads.set(key, known ?? new Head(sequence, index).open());
  if (heads.size > KEPT) heads.delete(heads.keys().next().value);
  return heads.get(key);
}

// The coarsest level of a head, which a thumbnail needs; its rows stay closed.
export async function thumbnail(sequence, index) {
  const shown = heads.has(`${sequence}.${index}`) ? await heads.get(`${sequence}.${index}`) : new Head(sequence, index);
  await Promise.all([shown.openLevel("mean", LAST), ...(single ? [] : [shown.openLevel("largest", LAST)])]);
  return shown;
}

// A head of which single cells are known, as well as the page knows them.
export async function cells(sequence, index) {
  const shown = await head(sequence, index);
  await shown.openLevel("mean", 0);
  return shown;
}
