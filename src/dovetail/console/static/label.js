// The page "Label": one episode after another, all by keyboard.

import { Bundle, ask } from "./bundle.js";
import { LabelView } from "./label_view.js";
import { Marks } from "./marks.js";
import { Outbox } from "./outbox.js";

const AHEAD = 3; // episodes held: the one in front of us and those fetched meanwhile
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
    this.only = new URLSearchParams(location.search).get("episode"); // one by name, from the page "Episodes"
    this.held = []; // {id, reasons, detail, bundle}; the first is the one on screen
    this.shown = null;
    this.waiting = { total: 0, items: [] };
    this.history = []; // what this page said, for undo
    this.skipped = new Set();
    this.leaving = new Set(); // said, and not yet acknowledged
    this.leftAt = new Map(); // when each was said or skipped: an answer that was asked for before does not bring it back
    this.timings = [];
    this.view = new LabelView(root, (text) => this.reward(text));
    this.player = this.view.player;
    this.marks = new Marks();
    this.outbox = new Outbox(() => this.view.toast("the console does not answer: trying again", "bad"));
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("pagehide", () => this.leave());
    addEventListener("pageshow", (event) => event.persisted && location.reload());
    addEventListener("beforeunload", (event) => this.leaving.size && event.preventDefault());
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
      await this.post(`episodes/${id}/take`);
    } catch (error) {
      this.view.toast(error.message, "bad");
    }
    this.held = [{ id, reasons: [], detail: "", bundle: new Bundle(id) }];
    await this.showNext(null);
    this.refresh();
  }

  post(path, body) {
    return ask(`/api/label/${path}`, { page: this.page, ...body });
  }

  // ---- what waits, and what of it is ours

  async refresh() {
    try {
      if (!this.only) await this.claim();
      this.waiting = await ask(`/api/label/queue?page=${this.page}`);
      this.drawQueue();
    } catch (error) {
      if (!(error instanceof TypeError)) this.view.toast(error.message, "bad"); // a TypeError: the console is away
    }
  }

  async claim() {
    if (this.held.length >= AHEAD || this.claiming) return;
    this.claiming = true;
    const asked = performance.now();
    try {
      const skip = [...this.skipped, ...this.leaving].slice(0, 5000);
      const { items } = await this.post("claim", { count: AHEAD, skip });
      for (const item of items) {
        const left = this.leaving.has(item.id) || (this.leftAt.get(item.id) ?? -1) >= asked;
        if (left || this.held.some((one) => one.id === item.id)) continue;
        this.held.push({ ...item, bundle: new Bundle(item.id) });
      }
    } finally {
      this.claiming = false;
    }
    for (const one of this.held) one.bundle.ready().catch(() => {}); // fetched before they are asked for
    if (!this.shown && this.held.length) await this.showNext(null);
  }

  async renew() {
    const ids = this.held.map((one) => one.id);
    const { held } = ids.length ? await this.post("renew", { ids }).catch(() => ({})) : {};
    if (!held) return; // nothing to hold; or the console is away, and leases run out by themselves
    const lost = this.held.filter((one) => ids.includes(one.id) && !held.includes(one.id));
    const current = lost.includes(this.shown);
    this.held = this.held.filter((one) => !lost.includes(one));
    if (current && !this.only) {
      this.view.toast("somebody else has this episode now", "bad");
      this.showNext(null);
    }
  }

  giveBack(one) {
    one.bundle.close();
    this.post("release", { ids: [one.id] }).catch(() => {});
  }

  leave() {
    const body = new Blob([JSON.stringify({ page: this.page })], { type: "application/json" });
    navigator.sendBeacon("/api/label/release", body);
  }

  // ---- the episode on screen

  // `pressed`: when the key was that asked for it.
  async showNext(pressed) {
    const one = (this.shown = this.held[0] ?? null);
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
    if (this.shown !== one) return; // somebody was quicker with the keys
    this.view.drawEpisode(one);
    await this.player.show(one.bundle);
    this.root.dataset.episode = one.id;
    if (pressed !== null) this.timings.push(performance.now() - pressed);
    if (localStorage.getItem(AUTOPLAY) === "yes" && this.shown === one) this.player.toggle();
    one.bundle.lookAhead(0);
    this.drawQueue();
  }

  showNothing() {
    const done = this.history.length ? `You have labelled ${this.history.length}. ` : "";
    const later = this.skipped.size ? "Press N to see those that you left for later." : "New ones appear here by themselves.";
    this.view.drawNothing("Nothing waits for you", done + later);
  }

  drawQueue() {
    this.view.drawQueue(this.waiting, { gone: this.leaving, skipped: this.skipped, now: this.shown?.id });
  }

  // ---- what keys do

  say(verdict, pressed) {
    const one = this.shown;
    if (!one) return;
    const marks = [...this.marks.list];
    this.view.flash(verdict);
    const said = { one, marks };
    this.history.push(said);
    this.leaving.add(one.id);
    const body = { page: this.page, verdict, marks, queued: !this.only };
    this.outbox.send(`/api/label/episodes/${one.id}/say`, body, async (error) => {
      this.leaving.delete(one.id);
      this.leftAt.set(one.id, performance.now());
      if (error) {
        this.history = this.history.filter((past) => past !== said);
        this.skipped.add(one.id);
        this.view.toast(`not saved: ${error.message}`, "bad");
      } else this.view.toast(`${verdict} · ${name(one)}`, verdict);
      if (this.only) await this.again(one, error ? marks : []);
      else one.bundle.close();
      this.refresh();
    });
    if (this.only) return;
    this.held.shift();
    this.showNext(pressed);
  }

  // The same one, with what has been said of it since.
  async again(one, marks) {
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
      const one = this.held.shift();
      this.skipped.add(one.id);
      this.leftAt.set(one.id, performance.now());
      this.giveBack(one);
      this.showNext(pressed);
    } else this.skipped.clear();
    this.refresh();
  }

  undo() {
    if (this.marks.undo()) return this.view.drawMarks(this.marks);
    const past = this.history.pop();
    if (!past) return this.view.toast("nothing to undo");
    const { one, marks } = past;
    this.outbox.send(`/api/label/episodes/${one.id}/unsay`, { page: this.page }, async (error) => {
      if (error) return this.view.toast(`not undone: ${error.message}`, "bad");
      this.view.toast(`taken back · ${name(one)}`);
      if (this.only) return this.again(one, marks);
      this.held = [{ ...one, marks, bundle: new Bundle(one.id) }, ...this.held.filter((other) => other.id !== one.id)];
      while (this.held.length > AHEAD) this.giveBack(this.held.pop());
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
    this.view.toast(on ? "episodes play as they open" : "episodes open at their first frame");
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.target instanceof HTMLElement && event.target.matches("input:not(.dv-scrub), textarea, select")) return;
    const pressed = event.timeStamp; // when the key went down, however long it took to get here
    const far = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowLeft: () => this.player.step(-far),
      ArrowRight: () => this.player.step(far),
      Home: () => this.player.step(-1e9),
      End: () => this.player.step(1e9),
    };
    const acts = {
      s: () => this.say("success", pressed),
      f: () => this.say("failure", pressed),
      d: () => this.say("discard", pressed),
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
    else if (act && !event.repeat) act(); // a key that is held down says it once
  }
}

function start() {
  const root = document.getElementById("dv-label");
  if (!root) return setTimeout(start, 20); // Vue has not built the page yet
  window.dovetailLabel = new LabelPage(root);
  window.dovetailLabel.start();
}
start();
