// Ranges of steps that a person gives a reward: begun, ended, then a number.

export class Marks {
  constructor(list = []) {
    this.list = list;
    this.open = null; // where one was begun
    this.asking = null; // one that has no number yet
  }

  // Begin one at this step, or end the one that was begun.
  press(step) {
    if (this.open === null) this.open = step;
    else {
      this.asking = { first: Math.min(this.open, step), last: Math.max(this.open, step), reward: null };
      this.open = null;
    }
  }

  // What was typed; nothing: no range after all. Says whether it could be understood.
  answer(text) {
    const reward = Number(text.trim().replace(",", "."));
    if (!this.asking || (text.trim() !== "" && !(Math.abs(reward) <= 1e6))) return false;
    if (text.trim() !== "") this.list.push({ ...this.asking, reward });
    this.asking = null;
    return true;
  }

  // Whether there was anything to undo.
  undo() {
    const half = this.open !== null || this.asking !== null;
    this.open = this.asking = null;
    return half || this.list.pop() !== undefined;
  }
}
