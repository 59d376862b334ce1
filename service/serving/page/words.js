// Turns figures into text, in one line with their units (\u00a0), and a body into sentences. Knows no elements.

const whole = new Intl.NumberFormat("en");
export const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
/* A whole number below a thousand, two digits above it. */
export const brief = new Intl.NumberFormat("en", { notation: "compact" });
/* A number and a noun, which has an s unless the number is 1. */
export const some = (n, thing) => `${count(n)} ${thing}${n === 1 ? "" : "s"}`;
const few = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));
export const number = (n) => (n !== 0 && (Math.abs(n) >= 1e7 || Math.abs(n) < 1e-4) ? n.toExponential(2) : few.format(n));
export const percent = (share, digits = 1) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)}\u00a0%`);
export const span = (a, b) => `${(100 * a).toFixed(1)} to ${percent(b)}`;
export function duration(seconds) {
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([size]) => seconds >= 2 * size) ?? [1, "s"];
  return `${Math.max(0, Math.floor(seconds / size))}\u00a0${unit}`;
}
/* A label as text; an empty one is shown as "". */
export const plain = (label) => String(label) || '""';
export const clipped = (text, most = 22) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/* Says which of Kafka and Redis does not answer, since when, and what that means for the figures; empty if both answer. */
export function outage(now) {
  const { kafka, redis } = now.missing, learner = now.model?.learning_here || now.waiting;
  const since = (seconds) => {
    const at = new Date(seconds * 1000);
    return now.time - seconds < 43200 ? at.toLocaleTimeString("en-GB") : at.toLocaleString("en-GB");
  };
  return [
    kafka && `Kafka has not answered since ${since(kafka)}, so nothing new is learned. `,
    redis && `Redis has not answered since ${since(redis)}, so ${learner ? "nothing is saved" : "no newer version is seen"}. `,
  ].filter(Boolean).join("");
}

/* Says who learns the model, in the line next to its name. */
export function standing(now) {
  const model = now.model;
  if (model.stopped) return `Learning stopped: ${model.stopped}`;
  if (model.learning_here) return "Learning here";
  if (now.waiting) return "Waiting to take over";
  if (model.identity.rule === "threshold-unit") return "Never learned";
  return `Following another process${now.learner ? ` (${now.learner} saved last)` : ""}`;
}

/* The line under the lag. */
export function behind(now) {
  if (now.lag !== null) return `${now.lag === 1 ? "record" : "records"} to be learned`;
  if (now.missing.kafka) return "not known without Kafka";
  return now.waiting ? "known once this process learns" : "known by the process that learns";
}

/* Says how many updates there can be. */
export function bound({ bound: most, bound_reason: reason, updates }) {
  if (most === null) return `No bound: ${reason}.`;
  return `The perceptron theorem allows ${some(most, "update")} at most; there ${updates === 1 ? "was" : "were"} ${count(updates)}.`;
}

/* A function that turns a predictor's name into text. */
export function named({ serve }) {
  const last = { last: "last weights", average: "average" };
  return (name) => `${last[name] ?? name}${name === serve ? " (served)" : ""}`;
}

/* Names the weights that answer, for a sentence. */
const weights = (serve) => ({ last: "the last weights", average: "the average" })[serve] ?? `candidate ${serve}`;
export const served = ({ serve, takeovers }) => (takeovers === null ? weights(serve) : "the weights that answered");

/* Names the weights that made the predictions of the confusion. */
export function confused({ model, of_last: last }) {
  if (!last) return served(model);
  return model.serve === "average" ? "the last weights" : `the last weights of ${weights(model.serve)}`;
}

/* Says how well the positive label is found; empty with three labels and more, or if that is not known. */
export function positive(now) {
  const { recall, precision, auc, average_precision: average, log_loss: loss } = now.model, known = ({ all, recent }) => all !== null || recent !== null;
  if (!known(recall) && !known(precision)) return "";
  const ranked = auc === null ? "" : ` Recent scores: AUC ${auc.toFixed(3)}, average precision ${average.toFixed(3)}${loss === null ? "" : `, log loss ${loss.toFixed(3)}`}.`;
  const both = ({ all, recent }) => `${percent(recent)} and ${percent(all)}`;
  return `Label ${plain(now.labels[1])}, of recent and of all events: recall ${both(recall)}, precision ${both(precision)}.${ranked}`;
}

/* Says since when who answers does, where the best predictor answers; else empty. */
export function takeover({ takeover: last, takeovers }) {
  if (takeovers === null) return "";
  if (last === null) return "the best from the start";
  const [partition, offset] = Object.entries(last.at)[0];
  return `the best since offset ${count(offset)} of partition ${partition} (${some(takeovers, "takeover")})`;
}

/* Says whether a candidate is better than the model. */
export function verdict(candidate) {
  const against = candidate.against_the_model;
  if (!against || against.better === null) return "no difference shown";
  return against.better === candidate.name ? "better" : "worse";
}

/* Says what the contributions to a prediction add up to, and how many of them are shown. */
export function sum({ label, runner_up: second, contributions }, most) {
  const total = number(contributions.reduce((all, one) => all + one.product, 0));
  const what = second === undefined ? "the score" : `the score of ${label} less that of ${second}`;
  const note = contributions.length > most ? ` The largest ${most} of ${count(contributions.length)} are shown.` : "";
  return `The contributions add up to ${total}, ${what}.${note}`;
}
