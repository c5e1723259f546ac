// Pieces that several views share: elements, numbers, names of tokens.

import * as tokens from "./tokens.js";
import * as run from "./run.js";

const { facts } = run;

// An element with attributes and children. A string becomes text, whatever it holds.
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, String(value));
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

// ── numbers ──

// A weight with four digits where the page tells as many, else three.
export function weightText(weight, digits = 3) {
  if (Number.isNaN(weight)) return "not a number";
  if (weight === 0) return "0";
  const size = Math.abs(weight);
  if (size >= 0.001 && size < 10_000) return weight.toPrecision(digits);
  return weight.toExponential(digits - 1).replace("e-", "e−").replace("e+", "e");
}

// What is an approximation: three digits would say too much.
export function roughText(weight) {
  return `≈ ${Math.abs(weight) >= 0.001 ? String(Number(weight.toPrecision(2))) : weightText(weight, 2)}`;
}

// A weight of which so many digits are correct; none: it is an approximation.
export function listText({ weight, digits }) {
  return digits ? weightText(weight, digits) : roughText(weight);
}

export function measureText(value) {
  if (value === null) return "–";
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size > 0 && size < 0.005) return value.toExponential(0).replace("e-", "e−");
  return value.toFixed(size >= 10 ? 1 : 2);
}

export function grouped(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

export function measureTitle(name) {
  return `${name} (${facts.measures[name]})`;
}

export function label(token, limit = 24) {
  return tokens.shorten(tokens.visible(token), limit);
}

// A place as people count: 0 is the first token of the text.
export function number(place, first) {
  return place < first ? `−${grouped(first - place)}` : grouped(place - first);
}

export function queryName(head, q, limit) {
  return label(run.queryTokens(head.sequence)[q] ?? "", limit);
}

export function keyName(head, k, limit) {
  return label(run.keyTokens(head.sequence)[k] ?? "", limit);
}
