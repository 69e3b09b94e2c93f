// The display of the page "Label": queue, facts of the episode, labels, ranges, keys, messages.

import { clock, laterPrompts, make } from "./dom.js";
import { labelLine } from "./label_line.js";
import { Player } from "./player.js";
import { onSwipe } from "./swipe.js";

const KEYS = [
  ["S", "success"], ["F", "failure"], ["D", "discard: not for training"], ["R", "range: start, end, reward"], ["U", "undo"],
  ["N", "next; skip this one"], ["← →", "one frame (⇧ ten)"], ["Home End", "first, last frame"], ["space", "play"],
  ["A", "play each when it opens"],
];

// verdicts first: on a phone they are next to each other
const ACTIONS = [
  ["failure", "✕ Failure", "F"], ["success", "✓ Success", "S"], ["discard", "Discard", "D"], ["skip", "Skip", "N"],
  ["undo", "Undo", "U"], ["range", "Range", "R"],
];

export class LabelView {
  // `on`: { reward(text), and one function per action }
  constructor(root, on) {
    this.root = root;
    this.build(on);
  }

  build(on) {
    this.root.className = "dv-label";
    this.root.innerHTML =
      '<aside class="dv-queue"><h2>Queue <b class="dv-count"></b></h2><ol class="dv-items"></ol></aside>' +
      '<section class="dv-stage"><header class="dv-head"></header><div class="dv-empty" hidden></div><div class="dv-screen"></div>' +
      '<div class="dv-swipe" aria-hidden="true"></div></section><div class="dv-verdicts" role="group" aria-label="label this episode"></div>' +
      '<aside class="dv-side"><h2>Labels</h2><ul class="dv-labels"></ul><h2>Ranges</h2><ul class="dv-marks"></ul>' +
      '<form class="dv-ask" hidden><label></label><input inputmode="decimal" autocomplete="off" aria-label="reward of the range"></form>' +
      '<h2>Keys</h2><dl class="dv-keys"></dl></aside><div class="dv-flash" aria-live="polite"></div><div class="dv-toasts"></div>';
    const get = (name) => this.root.querySelector(name);
    [this.count, this.items, this.head, this.empty] = [".dv-count", ".dv-items", ".dv-head", ".dv-empty"].map(get);
    [this.labels, this.markList, this.askForm, this.flashBox, this.toasts] =
      [".dv-labels", ".dv-marks", ".dv-ask", ".dv-flash", ".dv-toasts"].map(get);
    for (const [key, what] of KEYS) {
      const term = make("dt");
      term.append(...key.split(" ").map((one) => make("kbd", "", one)));
      get(".dv-keys").append(term, make("dd", "", what));
    }
    this.player = new Player(get(".dv-screen"));
    this.verdicts = get(".dv-verdicts");
    this.verdicts.append(...ACTIONS.map(([name, text, key]) => this.action(name, text, key, on[name])));
    this.swipeBox = get(".dv-swipe");
    onSwipe(this.player.cameras, { right: (event) => on.success(event), left: (event) => on.failure(event), enabled: () => !this.player.root.hidden && this.player.bundle !== null, hint: (side, far) => this.drawSwipe(side, far) });
    this.askForm.addEventListener("submit", (event) => {
      event.preventDefault();
      on.reward(this.askForm.querySelector("input").value);
    });
  }

  action(name, text, key, act) {
    const button = make("button", `dt-button dv-do-${name}`, text);
    button.dataset.do = name;
    button.append(make("kbd", "", key));
    button.addEventListener("click", (event) => {
      if (event.detail) button.blur(); // by pointer: the space bar plays again
      act(event);
    });
    return button;
  }

  drawSwipe(side, far) {
    this.swipeBox.className = `dv-swipe ${side ? `dv-${side === "right" ? "success" : "failure"}` : ""} ${far ? "dv-far" : ""}`;
    this.swipeBox.textContent = side ? (side === "right" ? "success" : "failure") : "";
  }

  // `labeled` are not yet saved; `skipped` come later; `now` is on screen.
  drawQueue({ total, items }, { labeled, skipped, now }) {
    const left = items.filter((item) => !labeled.has(item.id));
    this.count.textContent = String(total - (items.length - left.length));
    const shown = new Map([...this.items.children].map((line) => [line.dataset.id, line]));
    const lines = left.map((item) => {
      const line = shown.get(item.id) ?? this.queueLine(item);
      line.classList.toggle("dv-now", item.id === now);
      line.classList.toggle("dv-other", item.owner === "other");
      line.classList.toggle("dv-later", skipped.has(item.id));
      return line;
    });
    this.items.replaceChildren(...lines);
  }

  queueLine(item) {
    const line = make("li");
    line.dataset.id = item.id;
    const image = make("img");
    image.loading = "lazy";
    image.alt = "";
    image.src = `/api/episodes/${item.id}/thumbnail`;
    image.addEventListener("error", () => image.classList.add("dv-missing"));
    const text = make("div");
    const chips = make("span", "dv-chips");
    chips.append(...item.reasons.map((reason) => make("span", `dv-chip dv-${reason}`, reason)));
    text.append(chips, make("small", "", item.detail || clock(item.since_unix_s)));
    line.append(image, text);
    line.title = item.id;
    return line;
  }

  drawEpisode(one) {
    this.empty.hidden = true;
    this.player.root.hidden = false;
    this.setVerdicts(true);
    this.drawHead(one);
    const lines = one.bundle.details.labels.toReversed().map((label) => labelLine(label));
    this.labels.replaceChildren(...(lines.length ? lines : [make("li", "dv-quiet", "no labels yet")]));
  }

  drawNothing(title, text) {
    this.player.clear();
    this.player.root.hidden = true;
    this.head.replaceChildren();
    this.labels.replaceChildren();
    this.setVerdicts(false);
    this.empty.hidden = false;
    this.empty.replaceChildren(make("strong", "", title), make("p", "", text));
  }

  // Without an episode, only undo and skip have a meaning.
  setVerdicts(enabled) {
    for (const button of this.verdicts.children) button.disabled = !enabled && !["undo", "skip"].includes(button.dataset.do);
  }

  drawHead(one) {
    const { details } = one.bundle;
    const title = make("div", "dv-title");
    title.append(make("strong", "", details.prompt || details.task), ...one.reasons.map((reason) => make("span", `dv-chip dv-${reason}`, reason)));
    const facts = [`no. ${details.number}`, details.purpose, `ended: ${details.outcome}`, `${details.num_steps} steps`,
      `weights ${details.policy_version}`, `operator ${details.operator}`, clock(details.started_unix_s)];
    const line = make("div", "dv-facts");
    line.append(...facts.map((fact) => make("span", "", fact)));
    if (one.detail) line.append(make("span", "dv-why", one.detail));
    this.head.replaceChildren(title, ...laterPrompts(details), line);
  }

  drawMarks({ list, open, asking }) {
    const all = asking ? [...list, asking] : list;
    this.player.plots.setMarks(all, open);
    const lines = all.map((mark) => {
      const line = make("li", mark.reward < 0 ? "dv-minus" : "dv-plus");
      line.append(make("span", "", `steps ${mark.first}–${mark.last}`), make("b", "", mark.reward === null ? "?" : String(mark.reward)));
      return line;
    });
    if (open !== null) lines.push(make("li", "dv-quiet", `from step ${open} … R ends it`));
    this.markList.replaceChildren(...(lines.length ? lines : [make("li", "dv-quiet", "no ranges")]));
    this.drawQuestion(asking);
  }

  // The reward of a range is typed here.
  drawQuestion(asking) {
    const input = this.askForm.querySelector("input");
    const opens = asking && this.askForm.hidden;
    this.askForm.hidden = !asking;
    if (!asking) return input.blur();
    const count = asking.last - asking.first + 1;
    const shared = count > 1 ? `, divided among ${count} steps` : "";
    this.askForm.querySelector("label").textContent = `Reward of steps ${asking.first}–${asking.last}${shared}. Press Enter; leave it empty to cancel.`;
    if (opens) {
      input.value = "";
      input.focus();
    }
  }

  flash(verdict) {
    this.flashBox.className = `dv-flash dv-${verdict}`;
    this.flashBox.textContent = verdict;
    this.flashBox.getAnimations().forEach((animation) => animation.cancel());
    this.flashBox.animate([{ opacity: 0.95 }, { opacity: 0 }], { duration: 600, easing: "ease-in" });
  }

  toast(text, kind) {
    const box = make("div", `dv-toast dv-${kind ?? "plain"}`, text);
    this.toasts.append(box);
    while (this.toasts.children.length > 4) this.toasts.firstChild.remove();
    setTimeout(() => box.remove(), kind === "bad" ? 6000 : 2500);
  }
}
