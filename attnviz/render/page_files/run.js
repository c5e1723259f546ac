// The run inside the page: its facts as JSON, its numbers as compressed blocks that are opened when needed.

export const facts = JSON.parse(document.getElementById("run").textContent);
export const single = facts.cells[0] * facts.cells[1] === 1; // whether each pixel is a cell

export const CODES = { FORBIDDEN: 0, ZERO: 1, TINY: 2, FIRST: 3 };
export const BROKEN = facts.fine ? 65535 : 255; // the code of what is not a number

const KEPT_BYTES = 2 ** 28; // opened blocks that stay in memory

export async function unpack(base64) {
  const text = atob(base64);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const opened = new Map();
let bytes = 0;

export function block(i) {
  const known = opened.get(i);
  opened.delete(i);
  opened.set(i, known ?? unpack(document.getElementById(`d${i}`).textContent).then((data) => {
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
export function whole(data, width) {
  if (width === 1) return data;
  const count = data.length / width;
  const numbers = new (width === 2 ? Uint16Array : Uint32Array)(count);
  for (let plane = 0; plane < width; plane++) {
    for (let i = 0, from = plane * count; i < count; i++) numbers[i] += data[from + i] * 2 ** (8 * plane);
  }
  return numbers;
}

// Whole numbers that stand as their differences, each from the one before, in planes.
export function running(data) {
  const numbers = Int32Array.from(whole(data, 4));
  for (let i = 1; i < numbers.length; i++) numbers[i] += numbers[i - 1];
  return numbers;
}

// The weight of each code, by the rule that the writer of the page tells.
const tables = new Map();
export function valuesOf({ low, ratio, steps, segments, signed }, broken = BROKEN) {
  const key = JSON.stringify([low, ratio, steps, segments, signed, broken]);
  if (tables.has(key)) return tables.get(key);
  if (tables.size > 300) tables.clear();
  const values = new Float64Array(broken + 1);
  let at = CODES.FIRST;
  for (let i = 0; i < (steps ?? 0); i++) values[at++] = low * ratio ** i;
  for (const [digits, powers, bottom] of segments ?? []) {
    const unit = 10 ** (digits - 1);
    for (let power = bottom; power < bottom + powers; power++) {
      // a division by a power of ten is exact to the last digit, a product is not
      const shift = power - digits + 1;
      for (let m = unit; m < 10 * unit; m++) values[at++] = shift < 0 ? m / 10 ** -shift : m * 10 ** shift;
    }
  }
  if (signed) for (let i = CODES.FIRST, end = at; i < end; i++) values[at++] = -values[i];
  values[broken] = NaN;
  tables.set(key, values);
  return values;
}

const texts = new Map(); // of each sequence, [queries, keys]
export async function openTokens(sequence) {
  if (texts.has(sequence)) return;
  const found = await Promise.all(facts.sequences[sequence].tokens.map(async (i) => JSON.parse(new TextDecoder().decode(await block(i)))));
  texts.set(sequence, found);
}

export function queryTokens(sequence) {
  return texts.get(sequence)?.[0] ?? [];
}

export function keyTokens(sequence) {
  return texts.get(sequence)?.[1] ?? [];
}

export function headName([layer, number]) {
  return facts.namesLayers ? `layer ${layer} · head ${number}` : `head ${number}`;
}

// The real tokens of a side: [first, one past the last].
export function real(sequence, name) {
  const one = facts.sequences[sequence];
  return name === "query" ? one.queryReal : one.keyReal;
}
