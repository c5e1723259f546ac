// The run inside the page: its facts as JSON, its weights as compressed bytes that are opened when needed.

export const facts = JSON.parse(document.getElementById("run").textContent);
const weightLines = lines("weights");
const maskLines = lines("masks");

// The lines of one of the page's data elements; a page of a long text has other ones.
function lines(id) {
  return document.getElementById(id)?.textContent.trim().split("\n") ?? [];
}

const KEPT_CELLS = 2 ** 28; // opened heads that stay in memory, in bytes
const NOT_A_NUMBER = facts.wide ? 65535 : 255;

// The numbers that weights are stored as: one byte each, or two, the lower first.
function numbers(bytes) {
  if (!facts.wide) return bytes;
  return Uint16Array.from({ length: bytes.length / 2 }, (_, i) => bytes[2 * i] | (bytes[2 * i + 1] << 8));
}

export async function unpack(base64) {
  const text = atob(base64);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const maskCache = new Map();
function mask(index) {
  if (index < 0) return null;
  if (!maskCache.has(index)) {
    maskCache.set(index, unpack(maskLines[index]).then((bits) => {
      const cells = new Uint8Array(facts.queries * facts.keys);
      for (let i = 0; i < cells.length; i++) cells[i] = (bits[i >> 3] >> (7 - (i & 7))) & 1;
      return cells;
    }));
  }
  return maskCache.get(index);
}

// One head of one sequence. `codes` and `allowed` are [queries × keys], row after row.
class Head {
  constructor(sequence, index, codes, allowed) {
    const one = facts.sequences[sequence];
    Object.assign(this, { sequence, index, codes, allowed });
    [this.layer, this.head] = facts.heads[index];
    this.low = one.low[index];
    this.step = one.step[index];
    [this.firstQuery, this.endQuery] = one.queryReal;
    [this.firstKey, this.endKey] = one.keyReal;
    this.largest = one.largest[index];
    this.rowLargest = new Float64Array(facts.queries); // of what is shown: no padding, nothing forbidden
    this.sees = new Uint8Array(facts.queries);
    this.broken = 0;
    for (let q = this.firstQuery; q < this.endQuery; q++) this.summarise(q);
  }

  summarise(q) {
    const { codes, allowed } = this;
    const row = q * facts.keys;
    this.sees[q] = allowed ? Number(allowed.subarray(row, row + facts.keys).includes(1)) : 1;
    let top = 0;
    for (let k = this.firstKey; k < this.endKey; k++) {
      if (allowed && !allowed[row + k]) continue;
      const code = codes[row + k];
      if (code === NOT_A_NUMBER) this.broken++;
      else if (code > top) top = code;
    }
    this.rowLargest[q] = Math.max(0, this.value(top));
  }

  value(code) {
    if (code === NOT_A_NUMBER) return NaN;
    return code === 0 ? 0 : this.low + (code - 1) * this.step;
  }

  weight(q, k) {
    return this.value(this.codes[q * facts.keys + k]);
  }

  // Whether the weight is more than 0, and less than what the steps can tell from it.
  isTiny(q, k) {
    return this.low === 0 && this.codes[q * facts.keys + k] === 1;
  }

  isAllowed(q, k) {
    return !this.allowed || this.allowed[q * facts.keys + k] === 1;
  }

  isPadding(q, k) {
    return q < this.firstQuery || q >= this.endQuery || k < this.firstKey || k >= this.endKey;
  }

  // Whether the cell shows a weight: neither padding nor forbidden.
  shows(q, k) {
    return !this.isPadding(q, k) && this.isAllowed(q, k);
  }

  // The place of a key among those that its query may see: [first, last] of those with its weight, and how many.
  rank(q, k) {
    const row = q * facts.keys;
    const own = this.codes[row + k];
    let above = 0;
    let same = 0;
    let all = 0;
    for (let j = this.firstKey; j < this.endKey; j++) {
      if (!this.isAllowed(q, j)) continue;
      all++;
      const code = this.codes[row + j];
      if (code === own) same++;
      else if (code !== NOT_A_NUMBER && code > own) above++;
    }
    return { first: above + 1, last: above + same, all };
  }

  // The largest weights of a query's row, or of a key's column: [{ at, weight }], largest first.
  top(at, count, along = "keys") {
    const found = [];
    const [start, end] = along === "keys" ? [this.firstKey, this.endKey] : [this.firstQuery, this.endQuery];
    for (let i = start; i < end; i++) {
      const [q, k] = along === "keys" ? [at, i] : [i, at];
      if (!this.shows(q, k)) continue;
      const weight = this.weight(q, k);
      if (weight > 0) found.push({ at: i, weight });
    }
    return found.sort((a, b) => b.weight - a.weight || a.at - b.at).slice(0, count);
  }
}

const opened = new Map();

// Open a head; heads that were opened long ago are let go when memory runs short.
export function head(sequence, index) {
  const key = sequence * facts.heads.length + index;
  const known = opened.get(key);
  opened.delete(key);
  opened.set(key, known ?? Promise.all([unpack(weightLines[key]), mask(facts.sequences[sequence].masks[index])])
    .then(([bytes, allowed]) => new Head(sequence, index, numbers(bytes), allowed)));
  if (opened.size * facts.queries * facts.keys > KEPT_CELLS && opened.size > 16) {
    opened.delete(opened.keys().next().value);
  }
  return opened.get(key);
}

export function queryTokens(sequence) {
  return facts.sequences[sequence].queryTokens;
}

export function keyTokens(sequence) {
  const one = facts.sequences[sequence];
  return one.keyTokens ?? one.queryTokens;
}

// The largest weight that is shown in any head of a sequence.
export function largest(sequence) {
  return Math.max(...facts.sequences[sequence].largest);
}

export function headName([layer, number]) {
  return facts.namesLayers ? `layer ${layer} · head ${number}` : `head ${number}`;
}
