// How a token is shown: as what it is. Nothing here makes markup; every result is plain text.

// Characters that cannot be seen, or that would reorder the text around them.
const SIGNS = new Map([[" ", "␣"], ["\u00a0", "⍽"], ["\n", "↵"], ["\r", "␍"], ["\t", "⇥"], ["\u007f", "␡"]]);
const BIDI = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/u;
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Zs}\p{Cs}\p{Cn}\p{Co}]/u;
const JOINERS = new Set(["\u200c", "\u200d"]);
const graphemes = new Intl.Segmenter(undefined, { granularity: "grapheme" });

function sign(character) {
  if (SIGNS.has(character)) return SIGNS.get(character);
  const code = character.codePointAt(0);
  if (code < 32) return String.fromCodePoint(0x2400 + code);
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

// A token with a visible sign for everything that has none. Joiners and emoji tags inside a
// character that is seen stay what they are.
export function visible(token) {
  let shown = "";
  for (const { segment } of graphemes.segment(token)) {
    const seen = /[^\p{C}\p{Z}\p{M}]/u.test(segment);
    for (const character of segment) {
      const kept = !BIDI.test(character) && (JOINERS.has(character) || /\p{Cf}/u.test(character)) && seen;
      shown += INVISIBLE.test(character) && !kept ? sign(character) : character;
    }
  }
  return shown || "∅";
}

// At most `limit` characters as a reader counts them, the middle cut.
export function shorten(text, limit) {
  if (text.length <= limit) return text;
  const all = Array.from(graphemes.segment(text), (s) => s.segment);
  if (all.length <= limit) return text;
  const half = Math.max(1, (limit - 1) >> 1);
  return `${all.slice(0, half).join("")}…${all.slice(-half).join("")}`;
}

// The direction that a text is read in: that of most of its letters.
export function direction(tokens) {
  let balance = 0;
  for (const token of tokens) {
    if (/^[[<].*[\]>]$/u.test(token)) continue;
    balance += (token.match(/[\p{scx=Hebr}\p{scx=Arab}\p{scx=Syrc}\p{scx=Thaa}\p{scx=Nkoo}\p{scx=Adlm}]/gu) || []).length;
    balance -= (token.match(/[\p{scx=Latn}\p{scx=Grek}\p{scx=Cyrl}]/gu) || []).length;
  }
  return balance > 0 ? "rtl" : "ltr";
}

const CLOSING = /^[\p{Pe}\p{Pf}.,;:!?%…。、，！？：；؟،؛।॥]/u;
const OPENING = /[\p{Ps}\p{Pi}¿¡]$/u;
const UNSPACED = /[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Thai}\p{scx=Laoo}\p{scx=Khmr}\p{scx=Mymr}]/u;

// How tokens make a text again: for each, whether a space stands before it, and what is written.
// Models mark a space themselves (Ġ, ▁) or mark its absence (##); plain words follow the usual rules.
export function asText(tokens) {
  const marked = tokens.some((t) => /^[Ġ▁]/u.test(t));
  const pieces = tokens.some((t) => /^##./u.test(t));
  const spaced = tokens.some((t) => /^\s+$/u.test(t));
  return tokens.map((token, i) => {
    if (marked) {
      const own = token.replace(/^[Ġ▁]/u, "");
      return { space: i > 0 && own !== token, text: own ? visible(own) : "␣" };
    }
    if (pieces && /^##./u.test(token)) return { space: false, text: visible(token.slice(2)) };
    const before = i > 0 ? tokens[i - 1] : "";
    const glued = i === 0 || spaced || CLOSING.test(token) || OPENING.test(before)
      || (UNSPACED.test(before) && UNSPACED.test(token));
    return { space: !glued, text: visible(token) };
  });
}
