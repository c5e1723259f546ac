// Text: the sentence as it is read, coloured by what one of its tokens looks at, or is looked at by.

import * as tokens from "./tokens.js";
import * as colours from "./colours.js";
import * as run from "./run.js";
import * as state from "./state.js";
import * as parts from "./parts.js";

const { facts } = run;
const { el } = parts;

export function view(side) {
  const looks = el("button", { type: "button", "data-side": "looks" }, "looks at");
  const seen = el("button", { type: "button", "data-side": "seen" }, "is looked at by");
  const choice = el("div", { class: "controls", role: "group", "aria-label": "Direction", "data-picture": "no" },
    el("span", {}, "Colour what the token"), el("span", { class: "switch" }, looks, seen));
  for (const button of [looks, seen]) button.addEventListener("click", () => state.set({ side: button.dataset.side }));
  const about = el("p", { class: "sentence-about" });
  const queries = text("queries", facts.cross ? "The queries' text" : "The text");
  const keys = facts.cross ? text("keys", "The keys' text") : null;
  const root = el("div", { class: "text-view" }, choice, about,
    ...(facts.cross ? [el("h2", {}, "Queries"), queries.root, el("h2", {}, "Keys"), keys.root] : [queries.root]));

  // One text as a list of tokens to choose from.
  function text(which, name) {
    const made = el("div", { class: "sentence", role: "listbox", tabindex: 0, "aria-label": name, "aria-orientation": "horizontal", "data-text": which });
    let spans = [];
    let first = 0;
    function fill(sequence) {
      const one = facts.sequences[sequence];
      const all = which === "keys" ? run.keyTokens(sequence) : run.queryTokens(sequence);
      const [start, end] = which === "keys" ? one.keyReal : one.queryReal;
      const real = all.slice(start, end);
      first = start;
      made.dir = tokens.direction(real);
      const answer = which === "keys" ? null : one.answer; // what the model wrote itself
      spans = real.map((token, i) => el("span", {
        class: answer !== null && start + i >= answer ? "answer" : "", role: "option", id: `${which}-${start + i}`, "data-at": start + i, "aria-label": `${parts.label(token, 60)}`,
      }));
      const pieces = tokens.asText(real);
      spans.forEach((span, i) => { span.textContent = tokens.shorten(pieces[i].text, 80); });
      made.classList.toggle("short", real.join(" ").length < 160);
      made.replaceChildren(...spans.flatMap((span, i) => (pieces[i].space ? [" ", span] : [span])));
      if (!real.length) made.append(el("span", { class: "none" }, "no tokens: all of this sequence is padding"));
      const padded = all.length - real.length;
      if (padded && real.length) made.append(" ", el("bdi", { class: "padded", dir: "ltr" }, `+ ${padded} padding`));
    }
    // `weights(i)` is what token i is coloured by, null for a token that may not be looked at.
    function colour(chosen, weights, top) {
      spans.forEach((span, i) => {
        const weight = weights ? weights(first + i) : undefined;
        const isChosen = first + i === chosen;
        span.setAttribute("aria-selected", String(isChosen));
        span.classList.toggle("forbidden", weight === null);
        span.classList.toggle("broken", Number.isNaN(weight));
        const rgb = weight > 0 ? colours.colourAt(parts.share(weight, top)) : null;
        span.style.backgroundColor = rgb ? colours.cssColour(rgb) : "";
        span.style.color = rgb ? colours.inkOn(rgb) : "";
      });
      if (chosen >= first && chosen < first + spans.length) made.setAttribute("aria-activedescendant", `${which}-${chosen}`);
      else made.removeAttribute("aria-activedescendant");
    }
    made.addEventListener("pointermove", (event) => {
      const at = event.target.dataset?.at;
      if (at !== undefined && !state.state.pinned) choose(Number(at));
    });
    made.addEventListener("click", (event) => {
      const at = event.target.dataset?.at;
      if (at === undefined) return;
      const isSame = Number(at) === (asKey() ? state.state.key : state.state.query);
      choose(Number(at), { pinned: !(state.state.pinned && isSame) });
    });
    function asKey() {
      return facts.cross ? which === "keys" : state.state.side === "seen";
    }
    function choose(at, more = {}) {
      const side = facts.cross ? { side: which === "keys" ? "seen" : "looks" } : {};
      state.set({ [asKey() ? "key" : "query"]: at, ...side, ...more });
    }
    made.addEventListener("focus", () => { if (facts.cross) state.set({ side: which === "keys" ? "seen" : "looks" }); });
    return { root: made, fill, colour, scrollTo: (i) => spans[i - first]?.scrollIntoView({ block: "nearest" }) };
  }

  let filled = -1;
  async function update(changed) {
    const { sequence, head: index } = state.state;
    const head = await run.head(sequence, index);
    if (sequence !== state.state.sequence || index !== state.state.head || state.state.view !== "text") return;
    const { query, key, side: direction } = state.state;
    if (filled !== sequence) {
      queries.fill(sequence);
      keys?.fill(sequence);
      filled = sequence;
    }
    for (const button of [looks, seen]) button.setAttribute("aria-pressed", String(button.dataset.side === direction));
    choice.hidden = facts.cross;
    const looking = direction === "looks";
    const weights = looking
      ? (k) => (head.shows(query, k) ? head.weight(query, k) : null)
      : (q) => (head.shows(q, key) ? head.weight(q, key) : null);
    const top = looking ? parts.scaleTop(head, query) : state.state.scale === "query" ? head.top(key, 1, "queries")[0]?.weight ?? 0 : parts.scaleTop(head, 0);
    if (facts.cross) {
      queries.colour(looking ? query : -1, looking ? null : weights, top);
      keys.colour(looking ? -1 : key, looking ? weights : null, top);
    } else {
      queries.colour(looking ? query : key, weights, top);
    }
    const chosen = looking ? run.queryTokens(sequence)[query] : run.keyTokens(sequence)[key];
    const padding = looking ? query < head.firstQuery || query >= head.endQuery : key < head.firstKey || key >= head.endKey;
    const blind = looking && !padding && !head.sees[query];
    about.replaceChildren("In ", run.headName(facts.heads[index]), ", ", el("bdi", { class: "chosen" }, parts.label(chosen, 40)),
      padding ? " is padding" : blind ? " sees nothing: the masks forbid every key" : looking ? " looks at" : " is looked at by");
    if (changed.has("by-key") || (changed.has("view") && state.state.pinned)) (facts.cross && !looking ? keys : queries).scrollTo(looking ? query : key);
    side.update(head);
  }

  return { root, update };
}
