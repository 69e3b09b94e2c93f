// Requests with labels, sent in order and repeated until the console answers.

import { Refusal, ask } from "./bundle.js";

const wait = (ms) => new Promise((done) => setTimeout(done, ms));

// Sends one request at a time. If the console does not answer, it tries again, so that no label is lost.
export class Outbox {
  constructor(onNoAnswer) {
    this.onNoAnswer = onNoAnswer;
    this.last = Promise.resolve();
  }

  // Calls `then(null)`, or `then(error)` if the console refuses.
  send(path, body, then) {
    this.last = this.last.then(async () => {
      for (let pauseMs = 500; ; pauseMs = Math.min(2 * pauseMs, 5000)) {
        try {
          await ask(path, body);
          return then(null);
        } catch (error) {
          if (error instanceof Refusal) return then(error);
          this.onNoAnswer();
          await wait(pauseMs);
        }
      }
    });
  }
}
