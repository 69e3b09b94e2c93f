// The page "Label": one episode after another, by keyboard, by buttons or by swipes.

import { Bundle, ask } from "./bundle.js";
import { LabelView } from "./label_view.js";
import { Marks } from "./marks.js";
import { Outbox } from "./outbox.js";

const AHEAD = 3; // claimed episodes: the one on screen and those loaded in advance
const POLL_MS = 3000;
const RENEW_MS = 8000;
const EPISODE_ID = /^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$/;
const AUTOPLAY = "dovetail-autoplay";

const secret = () => [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
const name = (one) => `no. ${one.bundle.details?.number ?? "?"}`;

class LabelPage {
  constructor(root) {
    this.root = root;
    this.page = secret();
    this.only = new URLSearchParams(location.search).get("episode"); // a single episode, from the page "Episodes"
    this.claimed = []; // {id, reasons, detail, bundle}; the first is on screen
    this.shown = null;
    this.waiting = { total: 0, items: [] };
    this.history = []; // labels of this page, for undo
    this.skipped = new Set();
    this.unsaved = new Set(); // labeled, not yet confirmed by the console
    this.leftAt = new Map(); // when each was labeled or skipped: older answers of the console are ignored
    this.timings = [];
    this.view = new LabelView(root, {
      success: (event) => this.label("success", event.timeStamp),
      failure: (event) => this.label("failure", event.timeStamp),
      discard: (event) => this.label("discard", event.timeStamp),
      skip: (event) => this.skip(event.timeStamp),
      undo: () => this.undo(),
      range: () => this.mark(),
      reward: (text) => this.reward(text),
    });
    this.player = this.view.player;
    this.marks = new Marks();
    this.outbox = new Outbox(() => this.view.toast("the console does not answer: trying again", "bad"));
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("pagehide", () => this.leave());
    addEventListener("pageshow", (event) => event.persisted && location.reload());
    addEventListener("beforeunload", (event) => this.unsaved.size && event.preventDefault());
    document.addEventListener("visibilitychange", () => document.hidden || this.renew());
    setInterval(() => this.renew(), RENEW_MS);
    setInterval(() => this.refresh(), POLL_MS);
  }

  async start() {
    if (this.only) return this.startWithOne(this.only);
    await this.refresh();
    if (!this.shown) this.showNext(null);
  }

  async startWithOne(id) {
    if (!EPISODE_ID.test(id)) return this.view.drawNothing("There is no such episode", "");
    try {
      await this.post(`episodes/${id}/claim`);
    } catch (error) {
      this.view.toast(error.message, "bad");
    }
    this.claimed = [{ id, reasons: [], detail: "", bundle: new Bundle(id) }];
    await this.showNext(null);
    this.refresh();
  }

  post(path, body) {
    return ask(`/api/label/${path}`, { page: this.page, ...body });
  }

  // ---- the queue, and the episodes that this page has claimed

  async refresh() {
    try {
      if (!this.only) await this.claim();
      this.waiting = await ask(`/api/label/queue?page=${this.page}`);
      this.drawQueue();
    } catch (error) {
      if (!(error instanceof TypeError)) this.view.toast(error.message, "bad"); // a TypeError: the console does not answer
    }
  }

  async claim() {
    if (this.claimed.length >= AHEAD || this.claiming) return;
    this.claiming = true;
    const askedMs = performance.now();
    try {
      const skip = [...this.skipped, ...this.unsaved].slice(0, 5000);
      const { items } = await this.post("claim", { count: AHEAD, skip });
      for (const item of items) {
        const left = this.unsaved.has(item.id) || (this.leftAt.get(item.id) ?? -1) >= askedMs;
        if (left || this.claimed.some((one) => one.id === item.id)) continue;
        this.claimed.push({ ...item, bundle: new Bundle(item.id) });
      }
    } finally {
      this.claiming = false;
    }
    for (const one of this.claimed) one.bundle.ready().catch(() => {}); // loaded in advance
    if (!this.shown && this.claimed.length) await this.showNext(null);
  }

  async renew() {
    const ids = this.claimed.map((one) => one.id);
    const { claimed } = ids.length ? await this.post("renew", { ids }).catch(() => ({})) : {};
    if (!claimed) return; // none; or the console does not answer, and claims expire
    const lost = this.claimed.filter((one) => ids.includes(one.id) && !claimed.includes(one.id));
    const current = lost.includes(this.shown);
    this.claimed = this.claimed.filter((one) => !lost.includes(one));
    if (current && !this.only) {
      this.view.toast("another person has claimed this episode", "bad");
      this.showNext(null);
    }
  }

  release(one) {
    one.bundle.close();
    this.post("release", { ids: [one.id] }).catch(() => {});
  }

  leave() {
    const body = new Blob([JSON.stringify({ page: this.page })], { type: "application/json" });
    navigator.sendBeacon("/api/label/release", body);
  }

  // ---- the episode on screen

  // `pressed`: time of the key press that asked for it.
  async showNext(pressed) {
    const one = (this.shown = this.claimed[0] ?? null);
    this.marks = new Marks(one?.marks);
    this.root.dataset.episode = "";
    this.view.drawMarks(this.marks);
    if (!one) return this.showNothing();
    try {
      await one.bundle.ready();
    } catch (error) {
      if (this.shown !== one) return;
      this.view.toast(error.message, "bad");
      return this.only ? this.view.drawNothing("This episode cannot be shown", error.message) : this.skip(null);
    }
    if (this.shown !== one) return; // the user has moved on
    this.view.drawEpisode(one);
    await this.player.show(one.bundle);
    this.root.dataset.episode = one.id;
    if (pressed !== null) this.timings.push(performance.now() - pressed);
    if (localStorage.getItem(AUTOPLAY) === "yes" && this.shown === one) this.player.toggle();
    one.bundle.decodeAhead(0);
    this.drawQueue();
  }

  showNothing() {
    const done = this.history.length ? `You have labeled ${this.history.length}. ` : "";
    const later = this.skipped.size ? "Press N to see the skipped episodes again." : "While the run is running, new episodes that need a label appear here. To label another one: open it in Episodes, then press L.";
    this.view.drawNothing("No episodes to label", done + later);
  }

  drawQueue() {
    this.view.drawQueue(this.waiting, { labeled: this.unsaved, skipped: this.skipped, now: this.shown?.id });
  }

  // ---- actions of the keys

  label(verdict, pressed) {
    const one = this.shown;
    if (!one) return;
    const marks = [...this.marks.list];
    this.view.flash(verdict);
    const entry = { one, marks };
    this.history.push(entry);
    this.unsaved.add(one.id);
    const body = { page: this.page, verdict, marks, queued: !this.only };
    this.outbox.send(`/api/label/episodes/${one.id}/label`, body, async (error) => {
      this.unsaved.delete(one.id);
      this.leftAt.set(one.id, performance.now());
      if (error) {
        this.history = this.history.filter((past) => past !== entry);
        this.skipped.add(one.id);
        this.view.toast(`not saved: ${error.message}`, "bad");
      } else this.view.toast(`${verdict} · ${name(one)}`, verdict);
      if (this.only) await this.reload(one, error ? marks : []);
      else one.bundle.close();
      this.refresh();
    });
    if (this.only) return;
    this.claimed.shift();
    this.showNext(pressed);
  }

  // Show the same episode with its new labels.
  async reload(one, marks) {
    await one.bundle.reload();
    if (this.shown !== one) return;
    this.marks = new Marks(marks);
    this.view.drawEpisode(one);
    this.player.plots.show(one.bundle.details);
    this.view.drawMarks(this.marks);
  }

  skip(pressed) {
    if (this.only) return location.assign("/label");
    if (this.shown) {
      const one = this.claimed.shift();
      this.skipped.add(one.id);
      this.leftAt.set(one.id, performance.now());
      this.release(one);
      this.showNext(pressed);
    } else this.skipped.clear();
    this.refresh();
  }

  undo() {
    if (this.marks.undo()) return this.view.drawMarks(this.marks);
    const past = this.history.pop();
    if (!past) return this.view.toast("nothing to undo");
    const { one, marks } = past;
    this.outbox.send(`/api/label/episodes/${one.id}/retract`, { page: this.page }, async (error) => {
      if (error) return this.view.toast(`not undone: ${error.message}`, "bad");
      this.view.toast(`retracted · ${name(one)}`);
      if (this.only) return this.reload(one, marks);
      this.claimed = [{ ...one, marks, bundle: new Bundle(one.id) }, ...this.claimed.filter((other) => other.id !== one.id)];
      while (this.claimed.length > AHEAD) this.release(this.claimed.pop());
      await this.showNext(null);
      this.refresh();
    });
  }

  mark() {
    const numSteps = this.shown?.bundle.details?.num_steps;
    if (!numSteps) return;
    this.marks.press(Math.min(this.player.index, numSteps - 1));
    this.view.drawMarks(this.marks);
  }

  reward(text) {
    if (!this.marks.answer(text)) return this.view.toast("a reward is a number, such as 1 or -0.5", "bad");
    this.view.drawMarks(this.marks);
  }

  autoplay() {
    const on = localStorage.getItem(AUTOPLAY) !== "yes";
    localStorage.setItem(AUTOPLAY, on ? "yes" : "no");
    this.view.toast(on ? "episodes play when they open" : "episodes open at the first frame");
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.target instanceof HTMLElement && event.target.matches("input:not(.dv-scrub), textarea, select")) return;
    if (event.key === " " && event.target instanceof HTMLElement && event.target.matches("button, a")) return; // it presses the button
    const pressed = event.timeStamp; // time of the key press, not of this handler
    const distance = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowLeft: () => this.player.step(-distance),
      ArrowRight: () => this.player.step(distance),
      Home: () => this.player.step(-1e9),
      End: () => this.player.step(1e9),
    };
    const acts = {
      s: () => this.label("success", pressed),
      f: () => this.label("failure", pressed),
      d: () => this.label("discard", pressed),
      r: () => this.mark(),
      u: () => this.undo(),
      n: () => this.skip(pressed),
      a: () => this.autoplay(),
      " ": () => this.player.toggle(),
    };
    const move = moves[event.key];
    const act = acts[event.key.toLowerCase()];
    if (move || act) event.preventDefault();
    if (move) move();
    else if (act && !event.repeat) act(); // a key that is held down counts once
  }
}

function start() {
  const root = document.getElementById("dv-label");
  if (!root) return setTimeout(start, 20); // Vue has not built the page yet
  window.dovetailLabel = new LabelPage(root);
  window.dovetailLabel.start();
}
start();
