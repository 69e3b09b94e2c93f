// Ranges of steps with a reward: the user starts one, ends it, then types a number.

export class Marks {
  constructor(list = []) {
    this.list = list;
    this.open = null; // first step of a range that has not ended
    this.asking = null; // a range without a reward
  }

  // Start a range at this step, or end the open one.
  press(step) {
    if (this.open === null) this.open = step;
    else {
      this.asking = { first: Math.min(this.open, step), last: Math.max(this.open, step), reward: null };
      this.open = null;
    }
  }

  // The text that was typed; empty text drops the range. Returns whether it was valid.
  answer(text) {
    const reward = Number(text.trim().replace(",", "."));
    if (!this.asking || (text.trim() !== "" && !(Math.abs(reward) <= 1e6))) return false;
    if (text.trim() !== "") this.list.push({ ...this.asking, reward });
    this.asking = null;
    return true;
  }

  // Returns whether there was something to undo.
  undo() {
    const unfinished = this.open !== null || this.asking !== null;
    this.open = this.asking = null;
    return unfinished || this.list.pop() !== undefined;
  }
}
