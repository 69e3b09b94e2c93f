// Plays an episode: all cameras and all curves show the same moment, whatever moves it.

import { Plots } from "./plots.js";

export class Player {
  constructor(root) {
    this.root = root;
    root.classList.add("dv-player");
    root.innerHTML =
      '<div class="dv-cameras"></div><div class="dv-transport"><button class="dv-play" title="play or pause (space)">▶</button>' +
      '<span class="dv-clock"></span><input class="dv-scrub" type="range" min="0" max="0" value="0" tabindex="-1" aria-label="moment">' +
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
    this.button.addEventListener("click", () => {
      this.toggle();
      this.button.blur(); // else the space bar would press it again
    });
  }

  // Paint the first frames of a bundle that is ready; resolves once the browser has shown them.
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
    const wanted = this.bundle.cameras.map((camera) => camera.name);
    const there = [...this.cameras.querySelectorAll("canvas")].map((canvas) => canvas.dataset.camera);
    if (wanted.length && wanted.join("\n") === there.join("\n")) return;
    this.cameras.replaceChildren(
      ...wanted.map((name) => {
        const figure = document.createElement("figure");
        const canvas = document.createElement("canvas");
        const caption = document.createElement("figcaption");
        canvas.dataset.camera = name;
        caption.textContent = name;
        figure.append(canvas, caption);
        return figure;
      }),
    );
    if (!wanted.length) this.cameras.textContent = "this episode has no pictures: judge it by its curves";
  }

  seek(index) {
    if (!this.bundle) return;
    const wanted = Math.max(0, Math.min(index, this.bundle.numFrames - 1));
    const direction = wanted < this.index ? -1 : 1;
    this.index = wanted;
    this._paint(wanted);
    this.bundle.lookAhead(wanted, direction);
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
    const [began, from] = [performance.now(), this.index];
    const tick = (now) => {
      if (!this.playing) return;
      const index = from + Math.floor(((now - began) / 1000) * this.bundle.details.hz);
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

  // All cameras in one go: from what is decoded, or as soon as it is, unless somebody has moved on meanwhile.
  _paint(index) {
    const bundle = this.bundle;
    const now = bundle.bitmapsNow(index);
    const draw = (pictures) => {
      const late = this.index !== index && !(this.playing && index > this.painted); // a slow machine still plays
      if (this.bundle !== bundle || late) return;
      this.painted = index;
      this.cameras.querySelectorAll("canvas").forEach((canvas, i) => {
        const picture = pictures[i];
        if (!picture) return;
        if (canvas.width !== picture.width || canvas.height !== picture.height) {
          [canvas.width, canvas.height] = [picture.width, picture.height];
        }
        canvas.getContext("2d").drawImage(picture, 0, 0);
        canvas.dataset.frame = String(index);
      });
      this.scrub.value = String(index);
      this.plots.moveTo(index);
      this._tell(index);
      this.onMove(index);
    };
    if (now) {
      draw(now);
      this._painted = Promise.resolve();
    } else this._painted = bundle.bitmapsAt(index).then(draw, () => draw([]));
  }

  _tell(index) {
    const { hz, num_steps } = this.bundle.details;
    this.clock.textContent = `${index} / ${num_steps}\n${(index / hz).toFixed(2)} s`;
    this.root.dataset.index = String(index);
  }
}
