// Who drives an arm, and why nothing moves, in words. All pages use the same ones.

const PURPOSES = { online: "online learning", demo: "demonstration", eval: "evaluation" };
export const purposeName = (purpose) => PURPOSES[purpose] || purpose || "";
const runName = () => document.querySelector(".dt-run")?.textContent ?? "RUN"; // in the header of every page
const runAgain = () => `Nothing moves: this run is not running. Start it with: dovetail run --resume ${runName()}`;

// `me`: { session: of this page, browser: of all tabs of this browser }. Returns { title, detail }.
export function whoDrives(state, me = {}) {
  if (!state) return { title: "Not running", detail: runAgain() };
  return (NAMES[state.control] || (() => ({ title: state.control, detail: state.reason || "" })))(state, me);
}

const NAMES = {
  fault: (state) => ({ title: "Stopped", detail: `Nothing moves: ${state.reason || "the arm has a fault"}. Check the arm, then press Acknowledge.` }),
  idle: (state) => ({ title: "Between episodes", detail: `Nothing moves until the next episode starts.${phase(state)}${labels(state)}` }),
  holding: () => ({ title: "Holding", detail: "Nothing moves: the connection to the driver was lost. Take over again, or press Start." }),
  paused: (state) => state.request ? { title: "Waiting for you", detail: `Nothing moves: ${state.request}.` } : state.episode?.purpose === "demo" && !state.step
    ? { title: "Waiting for you", detail: state.drive?.refusal ? `Nothing moves: this demonstration needs a person who drives, but ${state.drive.refusal}.` : "Nothing moves: this demonstration starts when you take over." }
    : { title: "Paused", detail: "Nothing moves: press Start to continue, or take over." },
  human: (state, me) => ({ title: driverTitle(state, me), detail: isMine(state, me) ? "The arm follows you. Release to hand back to the policy." : "The arm follows the operator." }),
  policy: (state) => ({ title: "Policy", detail: `${state.policy_version ? `version ${state.policy_version}` : "untrained"}${state.may_drive ? "" : " · evaluation: takeover is disabled"}` }),
};

export const isMine = (state, me) => Boolean(me.session) && state?.control === "human" && state.driver_session === me.session;

function driverTitle(state, me) {
  if (isMine(state, me)) return "You drive";
  if (me.browser && state.driver_browser === me.browser) return "You drive in another tab";
  if (state.driver_session) return !state.driver || state.driver === "anonymous" ? "Another person drives" : `${state.driver} drives`;
  const operator = state.facts?.operator;
  return operator && operator !== "none" && operator !== "browser" ? `The ${operator} operator drives` : "The operator drives";
}

const phase = (state) => (state.reason || state.facts?.phase) ? ` The run is in phase: ${state.reason || state.facts.phase}.` : "";

function labels(state) {
  const count = Object.values(state.facts?.waiting || {}).reduce((sum, one) => sum + one, 0);
  return count ? ` ${count} episode${count > 1 ? "s wait" : " waits"} for a label.` : "";
}

// Why this page cannot start to drive now; empty if it can. `linked`: the console has answered.
export function whyNotDrive(state, { linked }) {
  if (!state) return "this run is not running";
  if (!linked) return "not connected to the arm yet";
  if (state.control === "fault") return "the arm is stopped: press Acknowledge first";
  if (!state.may_drive) return "this is an evaluation: takeover is disabled";
  if (state.drive?.refusal) return `this arm cannot be driven: ${state.drive.refusal}`;
  if (!(state.drive?.parts || []).some((part) => part.kind !== "gripper")) return "this robot has no part that can be driven";
  return "";
}

// The same for the small label in the header.
export const whoDrivesShort = (state, me) => whoDrives(state, me).title.replace(/^You drive in/, "You, in").replace(/ drives?$/, "").replace(/^The (.)/, (_, letter) => letter.toUpperCase());

// The switch is held, but the arm does not follow this page (yet).
export function whyNotFollowing(state, seconds) {
  if (!state) return "nothing moves: the run has ended";
  if (state.control === "fault") return "nothing moves: the arm is stopped";
  if (state.control === "idle") return "nothing moves: no episode is running";
  if (state.control === "human" && state.driver_session) return "nothing moves: another page drives";
  return seconds > 1 ? "nothing moves: the arm has not answered yet" : "";
}
