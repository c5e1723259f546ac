// Colour: one ramp for weights, even in perceived lightness, and a few colours that tell heads apart.

// The ramp's ends, in OKLCH: lightness, chroma, hue. Lightness runs evenly from the first to the
// last; a weight of 0 is near the page's own ground, so that the eye goes to what is looked at.
const RAMPS = {
  light: [[0.975, 0.012, 170], [0.84, 0.085, 172], [0.62, 0.105, 205], [0.42, 0.1, 255], [0.24, 0.075, 285]],
  dark: [[0.235, 0.022, 268], [0.42, 0.095, 262], [0.62, 0.105, 215], [0.82, 0.105, 172], [0.97, 0.06, 150]],
};

const NOT_A_NUMBER = { light: "#d81b60", dark: "#ff5c8a" };

// Eight hues that stay apart for colour-blind readers, dark enough or bright enough for each ground.
const HEADS = {
  light: ["#0067a5", "#c2410c", "#00796b", "#a3247f", "#6d6a00", "#4b3fb5", "#8a4b1f", "#3f4a5a"],
  dark: ["#5ab4ff", "#ff9a4d", "#3dd6b0", "#ff8ad0", "#e3d64b", "#b3a6ff", "#e0a882", "#c3ccd8"],
};

const scheme = matchMedia("(prefers-color-scheme: dark)");

export function theme() {
  return scheme.matches ? "dark" : "light";
}

export function onThemeChange(react) {
  scheme.addEventListener("change", react);
}

// A custom property of the style sheet, so that canvases and elements share their colours. It is asked
// for many times in each frame, and is one thing a theme.
const properties = new Map();
export function css(name) {
  const key = `${theme()} ${name}`;
  if (!properties.has(key)) properties.set(key, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return properties.get(key);
}

export function headColour(i) {
  return HEADS[theme()][i % HEADS.light.length];
}

export function brokenColour() {
  return NOT_A_NUMBER[theme()];
}

function toRgb([lightness, chroma, hue]) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((x) => {
    const bounded = Math.min(1, Math.max(0, x));
    return Math.round(255 * (bounded <= 0.0031308 ? 12.92 * bounded : 1.055 * bounded ** (1 / 2.4) - 0.055));
  });
}

// 256 colours, made once a theme.
const made = {};
function ramp() {
  const name = theme();
  made[name] ??= Array.from({ length: 256 }, (_, i) => {
    const stops = RAMPS[name];
    const at = (i / 255) * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(at));
    const part = at - low;
    const mixed = stops[low].map((x, j) => x + (stops[low + 1][j] - x) * part);
    mixed[0] = stops[0][0] + ((stops.at(-1)[0] - stops[0][0]) * i) / 255;
    return toRgb(mixed);
  });
  return made[name];
}

// The ramp's colour for a share of the scale, 0 … 1.
export function colourAt(share) {
  return ramp()[Math.round(255 * Math.min(1, Math.max(0, share)))];
}

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
