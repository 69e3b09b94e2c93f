// One episode in the browser: its details, and its frames, fetched by the block and decoded where they are looked at.

const BLOCK = 32; // frames in one answer, as the server has it
const KEPT_BLOCKS = 96; // of one camera: an hour's episode is fetched where it is looked at
const KEPT_BITMAPS = 160; // decoded frames of one camera
const AHEAD = 24; // decoded before they are asked for

export class Refusal extends Error {}

// JSON over HTTP; what the server refuses comes as one line in a Refusal, and a lost connection as a TypeError.
export async function ask(path, body, method) {
  const how = { method: method || (body === undefined ? "GET" : "POST"), headers: {} };
  if (body !== undefined) {
    how.body = JSON.stringify(body);
    how.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, how);
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const why = new Refusal(typeof told.detail === "string" ? told.detail : `refused (${answer.status})`);
    why.status = answer.status;
    throw why;
  }
  return told;
}

export class Bundle {
  constructor(id) {
    this.id = id;
    this.details = null;
    this.cameras = []; // each with its blocks and what is decoded of them
    this.stopped = false;
    this.onBlock = () => {};
  }

  // Resolves when the first frame of every camera can be painted; the rest follows.
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
      bitmaps: new Map(), // what is decoded or being decoded, the last looked at last
      now: new Map(), // what is decoded
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
      coming.catch(() => camera.blocks.delete(number)); // it may be asked for again
      camera.blocks.set(number, coming);
      if (camera.blocks.size > KEPT_BLOCKS) camera.blocks.delete(camera.blocks.keys().next().value);
    }
    return camera.blocks.get(number);
  }

  async _fetchBlock(camera, number) {
    const answer = await fetch(`/api/episodes/${this.id}/frames/${camera.number}/${number}`);
    if (!answer.ok) throw new Refusal((await answer.json().catch(() => ({}))).detail ?? "no frames");
    const data = await answer.arrayBuffer();
    const words = new DataView(data);
    const count = words.getUint32(0, true);
    const frames = [];
    let at = 4 + 4 * count;
    for (let i = 0; i < count; i++) {
      const length = words.getUint32(4 + 4 * i, true);
      frames.push(length ? new Blob([new Uint8Array(data, at, length)], { type: "image/jpeg" }) : frames[i - 1]);
      at += length;
    }
    this.onBlock();
    return frames;
  }

  _bitmap(camera, index) {
    const frame = Math.min(index, camera.numFrames - 1); // a filmed one has no picture of the end
    let coming = camera.bitmaps.get(frame);
    if (coming) camera.bitmaps.delete(frame); // to the end: it was looked at last
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

  // All cameras' pictures of one moment, together.
  bitmapsAt(index) {
    return Promise.all(this.cameras.map((camera) => (camera.numFrames ? this._bitmap(camera, index) : null)));
  }

  // The same, if they are all decoded already; else null.
  bitmapsNow(index) {
    const pictures = this.cameras.map((camera) => camera.now.get(Math.min(index, camera.numFrames - 1)));
    return pictures.every((picture) => picture) ? pictures : null;
  }

  lookAhead(index, direction = 1) {
    for (let i = 1; i <= AHEAD; i++) {
      const frame = index + direction * i;
      if (frame >= 0 && frame < this.numFrames) this.cameras.forEach((camera) => this._bitmap(camera, frame).catch(() => {}));
    }
  }

  // How much of it is here, 0 to 1.
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
