// Plays an episode: all cameras and all curves show the same frame.

import { Plots } from "./plots.js";

export class Player {
  constructor(root) {
    this.root = root;
    root.classList.add("dv-player");
    root.innerHTML =
      '<div class="dv-cameras"></div><div class="dv-transport"><button class="dv-play" title="play or pause (space)" aria-label="play or pause">▶</button>' +
      '<span class="dv-clock"></span><input class="dv-scrub" type="range" min="0" max="0" value="0" aria-label="frame">' +
      '</div><div class="dv-curves"></div>';
    this.cameras = root.querySelector(".dv-cameras");
    this.scrub = root.querySelector(".dv-scrub");
    this.clock = root.querySelector(".dv-clock");
    this.button = root.querySelector(".dv-play");
    this.plots = new Plots(root.querySelector(".dv-curves"), (index) => this.seek(index));
    this.bundle = null;
    this.index = 0;
    this.playing = false;
    this.onMove = () => {};
    this.scrub.addEventListener("input", () => this.seek(Number(this.scrub.value)));
    this.button.addEventListener("click", (event) => {
      this.toggle();
      if (event.detail) this.button.blur(); // by pointer: the space bar plays again wherever the focus was
    });
  }

  // Draw the first frames of a loaded bundle; resolves when the browser has shown them.
  show(bundle) {
    this.pause();
    this.bundle = bundle;
    this.index = 0;
    this.scrub.max = String(bundle.numFrames - 1);
    this._makeCanvases();
    this.plots.show(bundle.details);
    this._paint(0);
    return this._painted.then(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  }

  clear() {
    this.pause();
    this.bundle = null;
    this.cameras.replaceChildren();
    this.plots.show(null);
    this.clock.textContent = "";
  }

  _makeCanvases() {
    const names = this.bundle.cameras.map((camera) => camera.name);
    const shown = [...this.cameras.querySelectorAll("canvas")].map((canvas) => canvas.dataset.camera);
    if (names.length && names.join("\n") === shown.join("\n")) return;
    this.cameras.replaceChildren(
      ...names.map((name) => {
        const figure = document.createElement("figure");
        const canvas = document.createElement("canvas");
        const caption = document.createElement("figcaption");
        canvas.dataset.camera = name;
        canvas.setAttribute("role", "img");
        canvas.setAttribute("aria-label", `camera ${name}`);
        caption.textContent = name;
        figure.append(canvas, caption);
        return figure;
      }),
    );
    if (!names.length) this.cameras.textContent = "this episode has no images: use its curves";
  }

  seek(index) {
    if (!this.bundle) return;
    const target = Math.max(0, Math.min(index, this.bundle.numFrames - 1));
    const direction = target < this.index ? -1 : 1;
    this.index = target;
    this._paint(target);
    this.bundle.decodeAhead(target, direction);
  }

  step(by) {
    this.pause();
    this.seek(this.index + by);
  }

  toggle() {
    if (this.playing) return this.pause();
    if (!this.bundle) return;
    if (this.index >= this.bundle.numFrames - 1) this.seek(0);
    this.playing = true;
    this.button.textContent = "❚❚";
    const [startedMs, from] = [performance.now(), this.index];
    const tick = (now) => {
      if (!this.playing) return;
      const index = from + Math.floor(((now - startedMs) / 1000) * this.bundle.details.hz);
      if (index !== this.index) this.seek(index);
      if (this.index >= this.bundle.numFrames - 1) return this.pause();
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  pause() {
    this.playing = false;
    this.button.textContent = "▶";
  }

  // Draw all cameras together: now if decoded, otherwise as soon as they are, unless the user has moved on.
  _paint(index) {
    const bundle = this.bundle;
    const now = bundle.bitmapsNow(index);
    const draw = (images) => {
      const late = this.index !== index && !(this.playing && index > this.painted); // a slow machine skips frames but still plays
      if (this.bundle !== bundle || late) return;
      this.painted = index;
      this.cameras.querySelectorAll("canvas").forEach((canvas, i) => {
        const image = images[i];
        if (!image) return;
        if (canvas.width !== image.width || canvas.height !== image.height) {
          [canvas.width, canvas.height] = [image.width, image.height];
          canvas.parentElement.style.setProperty("--ratio", String(image.width / image.height));
        }
        canvas.getContext("2d").drawImage(image, 0, 0);
        canvas.dataset.frame = String(index);
      });
      this.scrub.value = String(index);
      this.plots.moveTo(index);
      this._showTime(index);
      this.onMove(index);
    };
    if (now) {
      draw(now);
      this._painted = Promise.resolve();
    } else this._painted = bundle.bitmapsAt(index).then(draw, () => draw([]));
  }

  _showTime(index) {
    const { hz, num_steps } = this.bundle.details;
    this.clock.textContent = `${index} / ${num_steps}\n${(index / hz).toFixed(2)} s`;
    this.root.dataset.index = String(index);
  }
}
