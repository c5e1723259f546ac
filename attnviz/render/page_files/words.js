// A cell and a token in words.

import * as run from "./run.js";
import * as parts from "./parts.js";

const { facts, single } = run;

export function percentText(share) {
  return `${(100 * share).toPrecision(2)} %`;
}

function masks() {
  return facts.masks.length ? `the masks (${facts.masks.join(", ")})` : "a mask";
}

// What is known of a cell: its weight as text, how exact that is, and a sentence about it.
export function verdict(head, q, k) {
  const cell = head.cell(q, k);
  const { name } = cell;
  const holds = cell.weight ? `, yet it holds ${parts.listText({ weight: cell.weight, digits: head.digitsOf(cell.weight) })}` : "";
  if (name === "padding") return { name, weight: "–", words: `padding, no part of the text${holds}` };
  if (name === "blind") return { name, weight: "–", words: `this query sees nothing: ${masks()} forbid every key` };
  if (name === "forbidden") return { name, weight: "–", words: `may not look (${cell.reason || `forbidden by ${masks()}`})${holds}` };
  if (name === "broken") return { name, weight: "–", words: "may look, but the weight is not a number" };
  if (name === "exact") {
    if (cell.zero) return { name, weight: "0", words: cell.unsure ? "exactly 0, or forbidden" : "may look, and does not: exactly 0" };
    if (cell.tiny) return { name, weight: `< ${parts.weightText(cell.low, 2)}`, words: "may look; too small for this page" };
    if (cell.listed) return { name, weight: parts.weightText(cell.weight), words: "may look: one of the row’s largest" };
    if (cell.digits) return { name, weight: parts.listText(cell), words: "may look" };
    return { name, weight: parts.listText(cell), error: ` ± ${percentText(single ? facts.error : facts.cellError)}`, words: "may look" };
  }
  const weight = cell.below === null ? "–" : `< ${parts.weightText(cell.below)}`;
  const words = cell.below === null ? "only its pixel is known" : facts.top === 1 ? "not the row’s largest" : `not among the row’s ${facts.top} largest`;
  return { name, weight, words: `${words}${cell.unsure ? ", or forbidden" : ""}` };
}

export function pixelText(head, q, k) {
  const codes = ["mean", "largest"].map((kind) => head.pixel(kind, q, k));
  if (codes.includes(null)) return "…";
  if (codes[0] === 0) return "all of its cells are forbidden";
  const [mean, largest] = ["mean", "largest"].map((kind, i) => (codes[i] === 2 ? `< ${parts.weightText(head.own[kind].low, 2)}` : parts.roughText(head.value(kind, codes[i]))));
  const counts = head.countsAt(q, k);
  const some = counts.allowed === null || counts.allowed === counts.all ? `${parts.grouped(counts.all)} cells` : `${parts.grouped(counts.allowed)} allowed of ${parts.grouped(counts.all)} cells`;
  return `mean ${mean}, largest ${largest} of ${some}`;
}

export function rankText(head, q, k) {
  const cell = head.cell(q, k);
  if (cell.name !== "exact" || Number.isNaN(cell.weight)) return "–";
  const { first, last, all } = head.rank(q, k);
  return first === last ? `${first} of ${all}` : `${first}–${last} of ${all}`;
}

export function cellText(head, q, k) {
  if (head.empty) return "no tokens: all of this sequence is padding";
  const what = verdict(head, q, k);
  const from = `query ${parts.number(q, head.firstQuery)} ${parts.queryName(head, q, 40)}`;
  const to = `key ${parts.number(k, head.firstKey)} ${parts.keyName(head, k, 40)}`;
  const weight = what.weight === "–" ? "" : `weight ${what.weight}, `;
  return `${from}, ${to}: ${weight}${what.words}`;
}

// What a token looks at, or is looked at by, in one sentence.
export function tokenText(head, direction, at) {
  const looks = direction === "looks";
  const found = looks ? head.top(at).slice(0, 3) : head.seenBy(at, 3);
  const name = (i) => (looks ? `${parts.keyName(head, i, 40)} #${parts.number(i, head.firstKey)}` : `${parts.queryName(head, i, 40)} #${parts.number(i, head.firstQuery)}`);
  const list = found.map((one) => `${name(one.at)} ${parts.listText(one)}`).join(", ");
  const own = looks ? parts.queryName(head, at, 40) : parts.keyName(head, at, 40);
  return `${own} ${looks ? "looks at" : "is looked at by"} ${list || "nothing"}`;
}

export function sizeText(head) {
  const [queries, keys] = [head.endQuery - head.firstQuery, head.endKey - head.firstKey].map((n) => parts.grouped(n));
  return facts.cross ? `${queries} queries × ${keys} keys` : `${queries} tokens`;
}
