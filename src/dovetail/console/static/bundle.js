// One episode in the browser: its details and its frames, loaded in blocks and decoded near the current frame.

const BLOCK = 32; // frames in one answer, as in frame_cache.py
const KEPT_BLOCKS = 96; // per camera
const KEPT_BITMAPS = 160; // decoded frames per camera
const AHEAD = 24; // decoded in advance

export class Refusal extends Error {}

// JSON over HTTP. Throws Refusal with one line if the server refuses, TypeError if the connection is lost.
export async function ask(path, body, method) {
  const options = { method: method || (body === undefined ? "GET" : "POST"), headers: {} };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, options);
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const refusal = new Refusal(typeof data.detail === "string" ? data.detail : `refused (${answer.status})`);
    refusal.status = answer.status;
    throw refusal;
  }
  return data;
}

export class Bundle {
  constructor(id) {
    this.id = id;
    this.details = null;
    this.cameras = []; // each with its blocks and decoded frames
    this.stopped = false;
    this.onBlock = () => {};
  }

  // Resolves when the first frame of every camera can be drawn; the others load afterwards.
  ready() {
    this._ready ??= this._begin();
    return this._ready;
  }

  async _begin() {
    this.details = await ask(`/api/episodes/${this.id}`);
    this.cameras = this.details.cameras.map((camera, number) => ({
      name: camera.name,
      number,
      numFrames: camera.num_frames,
      blocks: new Map(),
      bitmaps: new Map(), // promises of decoded frames, least recently used first
      now: new Map(), // decoded frames
    }));
    await this.bitmapsAt(0);
    this._fetchRest();
    return this;
  }

  async reload() {
    this.details = await ask(`/api/episodes/${this.id}`);
  }

  get numFrames() {
    const most = Math.max(0, ...this.cameras.map((camera) => camera.numFrames));
    return Math.max(most, (this.details?.num_steps ?? 0) + 1);
  }

  async _fetchRest() {
    const numBlocks = Math.min(KEPT_BLOCKS, Math.ceil(this.numFrames / BLOCK));
    for (let block = 0; block < numBlocks && !this.stopped; block++) {
      await Promise.all(this.cameras.map((camera) => this._block(camera, block).catch(() => {})));
    }
  }

  _block(camera, number) {
    if (!camera.blocks.has(number)) {
      const coming = this._fetchBlock(camera, number);
      coming.catch(() => camera.blocks.delete(number)); // allow another attempt
      camera.blocks.set(number, coming);
      if (camera.blocks.size > KEPT_BLOCKS) camera.blocks.delete(camera.blocks.keys().next().value);
    }
    return camera.blocks.get(number);
  }

  async _fetchBlock(camera, number) {
    const answer = await fetch(`/api/episodes/${this.id}/frames/${camera.number}/${number}`);
    if (!answer.ok) throw new Refusal((await answer.json().catch(() => ({}))).detail ?? "no frames");
    const data = await answer.arrayBuffer();
    const view = new DataView(data);
    const count = view.getUint32(0, true);
    const frames = [];
    let at = 4 + 4 * count;
    for (let i = 0; i < count; i++) {
      const length = view.getUint32(4 + 4 * i, true);
      frames.push(length ? new Blob([new Uint8Array(data, at, length)], { type: "image/jpeg" }) : frames[i - 1]);
      at += length;
    }
    this.onBlock();
    return frames;
  }

  _bitmap(camera, index) {
    const frame = Math.min(index, camera.numFrames - 1); // a rendered episode has no image of the last observation
    let coming = camera.bitmaps.get(frame);
    if (coming) camera.bitmaps.delete(frame); // move it to the end: most recently used
    else {
      coming = this._block(camera, Math.floor(frame / BLOCK)).then((frames) => {
        const blob = frames[frame % BLOCK];
        return blob ? createImageBitmap(blob) : null;
      });
      coming.then((bitmap) => camera.now.set(frame, bitmap)).catch(() => camera.bitmaps.delete(frame));
    }
    camera.bitmaps.set(frame, coming);
    if (camera.bitmaps.size > KEPT_BITMAPS) {
      const oldest = camera.bitmaps.keys().next().value;
      camera.bitmaps.get(oldest).then((bitmap) => bitmap?.close()).catch(() => {});
      camera.bitmaps.delete(oldest);
      camera.now.delete(oldest);
    }
    return coming;
  }

  // The images of all cameras at one frame.
  bitmapsAt(index) {
    return Promise.all(this.cameras.map((camera) => (camera.numFrames ? this._bitmap(camera, index) : null)));
  }

  // The same if all are decoded, else null.
  bitmapsNow(index) {
    const images = this.cameras.map((camera) => camera.now.get(Math.min(index, camera.numFrames - 1)));
    return images.every((image) => image) ? images : null;
  }

  decodeAhead(index, direction = 1) {
    for (let i = 1; i <= AHEAD; i++) {
      const frame = index + direction * i;
      if (frame >= 0 && frame < this.numFrames) this.cameras.forEach((camera) => this._bitmap(camera, frame).catch(() => {}));
    }
  }

  // Share of the frames that is loaded, 0 to 1.
  get share() {
    const all = this.cameras.length * Math.ceil(this.numFrames / BLOCK);
    return all ? this.cameras.reduce((sum, camera) => sum + camera.blocks.size, 0) / all : 1;
  }

  close() {
    this.stopped = true;
    for (const camera of this.cameras) {
      for (const coming of camera.bitmaps.values()) coming.then((bitmap) => bitmap?.close()).catch(() => {});
      camera.bitmaps.clear();
      camera.blocks.clear();
      camera.now.clear();
    }
  }
}
