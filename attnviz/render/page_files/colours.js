// Colour: the map of the run's pictures for weights, and a few colours that tell heads apart.

import * as run from "./run.js";

const { facts } = run;
const NOT_A_NUMBER = { light: "#d81b60", dark: "#ff5c8a" };

// Eight hues that stay apart for colour-blind readers, dark enough or bright enough for each ground.
const HEADS = {
  light: ["#0067a5", "#c2410c", "#00796b", "#a3247f", "#6d6a00", "#4b3fb5", "#8a4b1f", "#3f4a5a"],
  dark: ["#5ab4ff", "#ff9a4d", "#3dd6b0", "#ff8ad0", "#e3d64b", "#b3a6ff", "#e0a882", "#c3ccd8"],
};

const scheme = matchMedia("(prefers-color-scheme: dark)");
const printing = matchMedia("print");
let exporting = false; // a picture that is downloaded is light, whatever the page is
if (facts.theme) document.documentElement.dataset.theme = facts.theme;

export function theme() {
  if (exporting || printing.matches) return "light";
  return facts.theme || (scheme.matches ? "dark" : "light");
}

export function onThemeChange(react) {
  scheme.addEventListener("change", react);
  printing.addEventListener("change", react);
}

// Do something as if the page were light.
export async function inLight(act) {
  const { dataset } = document.documentElement;
  [exporting, dataset.theme] = [true, "light"];
  try {
    return await act();
  } finally {
    exporting = false;
    if (facts.theme) dataset.theme = facts.theme;
    else delete dataset.theme;
  }
}

// A custom property of the style sheet, so that canvases and elements share their colours. It is asked
// for many times in each frame, and is one thing a theme.
const probe = document.createElement("i");
probe.hidden = true;
const properties = new Map();
export function css(name) {
  const key = `${theme()} ${name}`;
  if (!properties.has(key)) {
    document.body.append(probe);
    probe.style.color = `var(--${name})`;
    properties.set(key, getComputedStyle(probe).color);
  }
  return properties.get(key);
}

export function headColour(i) {
  return HEADS[theme()][i % HEADS.light.length];
}

/** @returns {[number, number, number]} */
export function rgbOf(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return [r, g, b];
}

export function brokenColour() {
  return NOT_A_NUMBER[theme()];
}

const RAMP = Array.from({ length: 256 }, (_, i) => rgbOf(`#${facts.ramp.slice(6 * i, 6 * i + 6)}`));

// The map's colour for a share of the scale, 0 … 1.
/** @returns {[number, number, number]} */
export function colourAt(share) {
  return RAMP[Math.round(255 * Math.min(1, Math.max(0, share)))];
}

// As one number, as canvases hold it.
export function packed([r, g, b]) {
  return (255 << 24) | (b << 16) | (g << 8) | r;
}

export const PALETTE = Int32Array.from(RAMP, packed);

export function cssColour([r, g, b]) {
  return `rgb(${r} ${g} ${b})`;
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((x) => (x <= 10.31475 ? x / 3294.6 : ((x / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Black or white, whichever can be read better on a colour.
export function inkOn(rgb) {
  return luminance(rgb) > 0.179 ? "#0b1016" : "#ffffff";
}
