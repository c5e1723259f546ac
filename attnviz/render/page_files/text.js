// Text: the sentence as it is read, coloured by what one of its tokens looks at, or is looked at by.

import * as run from "./run.js";
import * as colours from "./colours.js";
import * as state from "./state.js";
import * as parts from "./parts.js";
import * as data from "./data.js";
import * as paint from "./paint.js";
import * as sentences from "./sentences.js";

const { facts } = run;
const { el } = parts;
const MOST = 700; // tokens that are shown at once

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

  function text(which, name) {
    const asKey = () => (facts.cross ? which === "keys" : state.state.side === "seen");
    const choose = (at, more = {}) => state.set({
      [asKey() ? "key" : "query"]: at, ...(facts.cross ? { side: which === "keys" ? "seen" : "looks" } : {}), ...more,
    });
    const made = sentences.sentence({
      which, name, most: MOST,
      onHover: (at) => { if (!state.state.pinned) choose(at); },
      onPick: (at) => choose(at, { pinned: !(state.state.pinned && at === (asKey() ? state.state.key : state.state.query)) }),
    });
    made.root.addEventListener("focus", () => { if (facts.cross) state.set({ side: which === "keys" ? "seen" : "looks" }); });
    return made;
  }

  async function update(changed) {
    const { sequence, head: index } = state.state;
    const head = await data.cells(sequence, index);
    if (sequence !== state.state.sequence || index !== state.state.head || state.state.view !== "text") return;
    const { query, key, side: direction } = state.state;
    const looking = direction === "looks";
    queries.fill(sequence, facts.cross || looking ? query : key);
    keys?.fill(sequence, key);
    for (const button of [looks, seen]) button.setAttribute("aria-pressed", String(button.dataset.side === direction));
    choice.hidden = facts.cross;
    const weights = looking ? (k) => head.weight(query, k) : (q) => head.weight(q, key);
    const ends = paint.range(head, looking ? query : null);
    if (!looking && state.state.scale === "query") ends[1] = head.seenBy(key, 1)[0]?.weight ?? 0;
    const colourOf = (weight) => {
      const rgb = paint.colourOf(weight, ends);
      return { fill: colours.cssColour(rgb), ink: colours.inkOn(rgb) };
    };
    if (facts.cross) {
      queries.colour(looking ? query : -1, looking ? null : weights, colourOf);
      keys.colour(looking ? -1 : key, looking ? weights : null, colourOf);
    } else {
      queries.colour(looking ? query : key, weights, colourOf);
    }
    const [at, first, end, name] = looking ? [query, head.firstQuery, head.endQuery, parts.queryName] : [key, head.firstKey, head.endKey, parts.keyName];
    const padding = at < first || at >= end;
    const blind = looking && !padding && head.isBlind(query);
    about.replaceChildren("In ", run.headName(facts.heads[index]), ", ", el("bdi", { class: "chosen" }, name(head, at, 40)), ` #${parts.number(at, first)}`,
      padding ? " is padding" : blind ? " sees nothing: the masks forbid every key" : looking ? " looks at" : " is looked at by");
    if (changed.has("by-key") || (changed.has("view") && state.state.pinned)) (facts.cross && !looking ? keys : queries).scrollTo(at);
    side.update(head);
  }

  return { root, update };
}
