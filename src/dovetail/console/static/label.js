// The page "Label": the queue, one episode after another, all by keyboard.

import { Bundle, Refusal, ask } from "./bundle.js";
import { opinion } from "./opinion.js";
import { Player } from "./player.js";

const AHEAD = 3; // episodes held: the one in front of us and those fetched meanwhile
const POLL_MS = 3000;
const RENEW_MS = 8000;

const KEYS = [
  ["S", "success"], ["F", "failure"], ["D", "discard: never learn from it"], ["R", "begin, then end a range; then its reward"],
  ["U", "undo"], ["N", "next, leave this for later"], ["← →", "one frame (⇧ ten)"], ["Home End", "first, last frame"],
  ["space", "play"], ["A", "play each as it opens"],
];

const secret = () => [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
const make = (tag, cls, text) => Object.assign(document.createElement(tag), { className: cls ?? "", textContent: text ?? "" });
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const clock = (unix_s) => new Date(unix_s * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "medium" });

class LabelPage {
  constructor(root) {
    this.root = root;
    this.page = secret();
    this.only = new URLSearchParams(location.search).get("episode"); // one by name, from the page "Episodes"
    this.held = []; // {id, reasons, detail, bundle}; the first is the one on screen
    this.shown = null;
    this.marks = [];
    this.open = null;
    this.asking = null;
    this.history = []; // what this page said, for undo
    this.skipped = new Set();
    this.leaving = new Set(); // said, and not yet acknowledged
    this.leftAt = new Map(); // when each was said or skipped: an answer that was asked for before does not bring it back
    this.outbox = Promise.resolve();
    this.timings = [];
    this.build();
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("pagehide", () => this.leave());
    addEventListener("pageshow", (event) => event.persisted && location.reload());
    addEventListener("beforeunload", (event) => this.leaving.size && event.preventDefault());
    document.addEventListener("visibilitychange", () => document.hidden || this.renew());
    setInterval(() => this.renew(), RENEW_MS);
    setInterval(() => this.refresh(), POLL_MS);
  }

  build() {
    this.root.className = "dv-label";
    this.root.innerHTML =
      '<aside class="dv-queue"><h2>Queue <b class="dv-count"></b></h2><ol class="dv-items"></ol></aside>' +
      '<section class="dv-stage"><header class="dv-head"></header><div class="dv-empty" hidden></div><div class="dv-screen"></div></section>' +
      '<aside class="dv-side"><h2>What was said</h2><ul class="dv-said"></ul><h2>Ranges</h2><ul class="dv-marks"></ul>' +
      '<form class="dv-ask" hidden><label></label><input inputmode="decimal" autocomplete="off" aria-label="reward of the range"></form>' +
      '<h2>Keys</h2><dl class="dv-keys"></dl></aside><div class="dv-flash" aria-live="polite"></div><div class="dv-toasts"></div>';
    const get = (name) => this.root.querySelector(name);
    [this.count, this.items, this.head, this.empty] = [".dv-count", ".dv-items", ".dv-head", ".dv-empty"].map(get);
    [this.said, this.markList, this.askForm, this.flashBox, this.toasts] =
      [".dv-said", ".dv-marks", ".dv-ask", ".dv-flash", ".dv-toasts"].map(get);
    for (const [key, what] of KEYS) {
      const term = make("dt");
      term.append(...key.split(" ").map((one) => make("kbd", "", one)));
      get(".dv-keys").append(term, make("dd", "", what));
    }
    this.player = new Player(get(".dv-screen"));
    this.askForm.addEventListener("submit", (event) => {
      event.preventDefault();
      this.answer(this.askForm.querySelector("input").value);
    });
  }

  async start() {
    if (this.only) return this.startWithOne(this.only);
    await this.refresh();
    if (!this.shown) this.showNext(null);
  }

  async startWithOne(id) {
    try {
      await ask(`/api/label/episodes/${id}/take`, { page: this.page });
    } catch (error) {
      this.toast(error.message, "bad");
    }
    this.held = [{ id, reasons: [], detail: "", bundle: new Bundle(id) }];
    await this.showNext(null);
    this.refresh();
  }

  // ---- what waits, and what of it is ours

  async refresh() {
    if (!this.only) await this.claim();
    try {
      const { total, items } = await ask(`/api/label/queue?page=${this.page}`);
      this.drawQueue(total, items);
    } catch (error) {
      if (!(error instanceof TypeError)) this.toast(error.message, "bad");
    }
  }

  async claim() {
    if (this.held.length >= AHEAD || this.claiming) return;
    this.claiming = true;
    const asked = performance.now();
    try {
      const skip = [...this.skipped, ...this.leaving].slice(0, 5000);
      const { items } = await ask("/api/label/claim", { page: this.page, count: AHEAD, skip });
      for (const item of items) {
        const left = this.leaving.has(item.id) || (this.leftAt.get(item.id) ?? -1) >= asked;
        if (left || this.held.some((one) => one.id === item.id)) continue;
        this.held.push({ ...item, bundle: new Bundle(item.id) });
      }
      this.prefetch();
      if (!this.shown && this.held.length) await this.showNext(null);
    } catch (error) {
      if (!(error instanceof TypeError)) this.toast(error.message, "bad");
    } finally {
      this.claiming = false;
    }
  }

  prefetch() {
    for (const one of this.held) one.bundle.ready().catch(() => {});
  }

  async renew() {
    if (!this.held.length) return;
    try {
      const { held } = await ask("/api/label/renew", { page: this.page, ids: this.held.map((one) => one.id) });
      const lost = this.held.filter((one) => !held.includes(one.id));
      if (!lost.length) return;
      const current = lost.includes(this.held[0]) && this.shown;
      this.held = this.held.filter((one) => !lost.includes(one));
      if (current && !this.only) {
        this.toast("somebody else has this episode now", "bad");
        this.showNext(null);
      }
    } catch {
      // the console is away: leases run out by themselves
    }
  }

  leave() {
    const body = new Blob([JSON.stringify({ page: this.page })], { type: "application/json" });
    navigator.sendBeacon("/api/label/release", body);
  }

  // ---- the episode on screen

  async showNext(pressed) {
    const one = this.held[0];
    this.marks = one?.marks ?? [];
    this.open = null;
    this.stopAsking();
    if (!one) return this.showNothing();
    this.shown = one;
    this.root.dataset.episode = "";
    try {
      await one.bundle.ready();
    } catch (error) {
      if (this.shown !== one) return;
      this.toast(error.message, "bad");
      this.skip(null);
      return;
    }
    if (this.shown !== one) return; // somebody was quicker with the keys
    this.empty.hidden = true;
    this.player.root.hidden = false;
    this.drawHead(one);
    this.drawSaid(one);
    this.drawMarks();
    await this.player.show(one.bundle);
    this.root.dataset.episode = one.id;
    if (pressed !== null) this.timings.push(performance.now() - pressed);
    this.root.dataset.shownMs = pressed === null ? "" : (performance.now() - pressed).toFixed(1);
    if (localStorage.getItem("dovetail-autoplay") === "yes" && this.shown === one) this.player.toggle();
    one.bundle.lookAhead(0);
  }

  showNothing() {
    this.shown = null;
    this.player.clear();
    this.player.root.hidden = true;
    this.head.replaceChildren();
    this.said.replaceChildren();
    this.drawMarks();
    this.empty.hidden = false;
    this.root.dataset.episode = "";
    const done = this.history.length ? `You have labelled ${this.history.length}. ` : "";
    const later = this.skipped.size ? "Press N to see those that you left for later." : "New ones appear here by themselves.";
    this.empty.replaceChildren(make("strong", "", "Nothing waits for you"), make("p", "", done + later));
  }

  take() {
    const one = this.held.shift();
    this.shown = null;
    return one;
  }

  say(verdict, pressed) {
    if (!this.shown) return;
    const one = this.shown;
    const marks = this.marks.map(({ first, last, reward }) => ({ first, last, reward }));
    this.flash(verdict);
    this.history.push({ one, verdict, marks });
    this.leaving.add(one.id);
    this.send(`/api/label/episodes/${one.id}/say`, { page: this.page, verdict, marks, queued: !this.only }, async (error) => {
      this.leaving.delete(one.id);
      this.leftAt.set(one.id, performance.now());
      if (error) {
        this.history = this.history.filter((past) => past.one !== one);
        this.skipped.add(one.id);
        this.toast(`not saved: ${error.message}`, "bad");
      } else {
        this.toast(`${verdict} · ${name(one)}`, verdict);
        if (!this.only) one.bundle.close();
      }
      if (this.only) await this.again(one);
      this.refresh();
    });
    if (!this.only) {
      this.take();
      this.showNext(pressed);
      this.drawQueue();
    }
  }

  async again(one) {
    await one.bundle.reload();
    if (this.shown !== one) return;
    this.marks = [];
    this.drawHead(one);
    this.drawSaid(one);
    this.drawMarks();
    this.player.plots.show(one.bundle.details);
  }

  skip(pressed) {
    if (this.only) return location.assign("/label");
    if (!this.shown) {
      this.skipped.clear();
      return this.refresh();
    }
    const one = this.take();
    this.skipped.add(one.id);
    this.leftAt.set(one.id, performance.now());
    one.bundle.close();
    ask("/api/label/release", { page: this.page, ids: [one.id] }).catch(() => {});
    this.showNext(pressed);
    this.refresh();
  }

  async undo() {
    if (this.open !== null || this.asking) {
      this.open = null;
      this.stopAsking();
      return this.drawMarks();
    }
    if (this.marks.length) {
      this.marks.pop();
      return this.drawMarks();
    }
    const past = this.history.pop();
    if (!past) return this.toast("nothing to undo");
    const { one } = past;
    this.send(`/api/label/episodes/${one.id}/unsay`, { page: this.page }, async (error) => {
      if (error) return this.toast(`not undone: ${error.message}`, "bad");
      this.toast(`taken back · ${name(one)}`);
      if (this.only) {
        await this.again(one);
        this.marks = past.marks;
        return this.drawMarks();
      }
      one.bundle.close();
      this.held = [{ ...one, marks: past.marks, bundle: new Bundle(one.id) }, ...this.held.filter((other) => other.id !== one.id)];
      while (this.held.length > AHEAD) {
        const spare = this.held.pop();
        spare.bundle.close();
        ask("/api/label/release", { page: this.page, ids: [spare.id] }).catch(() => {});
      }
      await this.showNext(null);
      this.refresh();
    });
  }

  // One after another, in order; while the console is away it is tried again: what a person said is not lost.
  send(path, body, then) {
    this.outbox = this.outbox.then(async () => {
      for (let pause = 500; ; pause = Math.min(2 * pause, 5000)) {
        try {
          await ask(path, body);
          return then(null);
        } catch (error) {
          if (error instanceof Refusal) return then(error);
          this.toast("the console does not answer: trying again", "bad");
          await wait(pause);
        }
      }
    });
  }

  // ---- ranges

  mark() {
    const details = this.shown?.bundle.details;
    if (!details?.num_steps) return;
    const step = Math.min(this.player.index, details.num_steps - 1);
    if (this.open === null) this.open = step;
    else {
      this.asking = { first: Math.min(this.open, step), last: Math.max(this.open, step), reward: null };
      this.open = null;
      this.askForm.hidden = false;
      const count = this.asking.last - this.asking.first + 1;
      const shared = count > 1 ? `, shared out among ${count} steps` : "";
      this.askForm.querySelector("label").textContent = `Reward of steps ${this.asking.first}–${this.asking.last}${shared}. Enter; nothing: none.`;
      const input = this.askForm.querySelector("input");
      input.value = "";
      input.focus();
    }
    this.drawMarks();
  }

  answer(text) {
    if (!this.asking) return;
    const reward = Number(text.trim().replace(",", "."));
    if (text.trim() !== "" && !(Math.abs(reward) <= 1e6)) return this.toast("a reward is a number, such as 1 or -0.5", "bad");
    if (text.trim() !== "") this.marks.push({ ...this.asking, reward });
    this.stopAsking();
    this.drawMarks();
  }

  stopAsking() {
    this.asking = null;
    this.askForm.hidden = true;
    this.askForm.querySelector("input").blur();
  }

  // ---- keys

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.target instanceof HTMLElement && event.target.matches("input:not(.dv-scrub), textarea, select")) return;
    const pressed = event.timeStamp; // when the key went down, however long it took to get here
    const far = event.shiftKey ? 10 : 1;
    const moves = { ArrowLeft: () => this.player.step(-far), ArrowRight: () => this.player.step(far),
      Home: () => this.player.step(-1e9), End: () => this.player.step(1e9) };
    const acts = { s: () => this.say("success", pressed), f: () => this.say("failure", pressed), d: () => this.say("discard", pressed),
      r: () => this.mark(), u: () => this.undo(), n: () => this.skip(pressed), " ": () => this.player.toggle(), a: () => this.autoplay() };
    const act = moves[event.key] ?? (event.repeat ? null : acts[event.key.toLowerCase()]); // a key held down says it once
    if (moves[event.key] || acts[event.key.toLowerCase()]) event.preventDefault();
    act?.();
  }

  autoplay() {
    const on = localStorage.getItem("dovetail-autoplay") !== "yes";
    localStorage.setItem("dovetail-autoplay", on ? "yes" : "no");
    this.toast(on ? "episodes play as they open" : "episodes open at their first frame");
  }

  // ---- drawing

  drawQueue(total, items) {
    if (items) this.waiting = { total, items };
    const { total: all, items: rows } = this.waiting ?? { total: 0, items: [] };
    const left = rows.filter((item) => !this.leaving.has(item.id));
    this.count.textContent = String(all - (rows.length - left.length));
    const there = new Map([...this.items.children].map((line) => [line.dataset.id, line]));
    const lines = left.map((item) => {
      const line = there.get(item.id) ?? this.queueLine(item);
      line.classList.toggle("dv-now", item.id === this.shown?.id);
      line.classList.toggle("dv-theirs", item.whose === "theirs");
      line.classList.toggle("dv-later", this.skipped.has(item.id));
      return line;
    });
    this.items.replaceChildren(...lines);
  }

  queueLine(item) {
    const line = make("li");
    line.dataset.id = item.id;
    const picture = make("img");
    picture.loading = "lazy";
    picture.alt = "";
    picture.src = `/api/episodes/${item.id}/thumbnail`;
    picture.addEventListener("error", () => picture.classList.add("dv-none"));
    const text = make("div");
    const chips = make("span", "dv-chips");
    chips.append(...item.reasons.map((reason) => make("span", `dv-chip dv-${reason}`, reason)));
    text.append(chips, make("small", "", item.detail || clock(item.since_unix_s)));
    line.append(picture, text);
    line.title = item.id;
    return line;
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
    this.head.replaceChildren(title, line);
  }

  drawSaid(one) {
    const lines = one.bundle.details.said.toReversed().map((said) => opinion(said));
    this.said.replaceChildren(...(lines.length ? lines : [make("li", "dv-quiet", "nobody has said anything yet")]));
  }

  drawMarks() {
    const all = this.asking ? [...this.marks, this.asking] : this.marks;
    this.player.plots.setMarks(all, this.open);
    const lines = all.map((mark) => {
      const line = make("li", mark.reward < 0 ? "dv-minus" : "dv-plus");
      line.append(make("span", "", `steps ${mark.first}–${mark.last}`), make("b", "", mark.reward === null ? "?" : String(mark.reward)));
      return line;
    });
    if (this.open !== null) lines.push(make("li", "dv-quiet", `from step ${this.open} … R ends it`));
    this.markList.replaceChildren(...(lines.length ? lines : [make("li", "dv-quiet", "none marked")]));
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

const name = (one) => `no. ${one.bundle.details?.number ?? "?"}`;

function start() {
  const root = document.getElementById("dv-label");
  if (!root) return setTimeout(start, 20); // Vue has not built the page yet
  window.dovetailLabel = new LabelPage(root);
  window.dovetailLabel.start();
}
start();
