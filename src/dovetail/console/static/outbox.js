// What a person said, on its way to the console.

import { Refusal, ask } from "./bundle.js";

const wait = (ms) => new Promise((done) => setTimeout(done, ms));

// One after another, in order; while the console is away it is tried again: what a person said is not lost.
export class Outbox {
  constructor(onSilence) {
    this.onSilence = onSilence;
    this.last = Promise.resolve();
  }

  // `then(error)` hears how it went: null, or why the console refused.
  send(path, body, then) {
    this.last = this.last.then(async () => {
      for (let pause = 500; ; pause = Math.min(2 * pause, 5000)) {
        try {
          await ask(path, body);
          return then(null);
        } catch (error) {
          if (error instanceof Refusal) return then(error);
          this.onSilence();
          await wait(pause);
        }
      }
    });
  }
}
