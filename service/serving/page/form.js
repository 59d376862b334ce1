// The form that asks for a prediction. It is filled in with the features of an event.
import { $, bars, cut, h } from "./chart.js";
import { number, percent, plain, some, sum } from "./words.js";

const MOST_BARS = 30, MOST_FIELDS = 40, MOST_ZEROS = 1000;
/* `features` and `typed`: the values and texts that the form was filled in with; `known`: an event had them. */
const state = { model: null, features: {}, fields: null, typed: "", known: false, question: null };

/* Sends a request to the service, with the token of this tab. */
export function ask(url, options = {}) {
  const token = sessionStorage.getItem("token"), headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
  return fetch(url, { ...options, headers, signal: AbortSignal.timeout(5000) });
}

const within = (value, path) => path.reduce((at, name) => at[name], value);
const typed = () => JSON.stringify([...$("fields").querySelectorAll("input, select, textarea")].map((field) => field.value));

/* The paths of the values, each of which has a field. A list is one value, unless it is all features of a model. */
function paths(value, path = []) {
  const inner = value !== null && typeof value === "object" && !(Array.isArray(value) && path.length);
  return inner ? Object.entries(value).flatMap(([name, one]) => paths(one, [...path, name])) : [path];
}

/* The field of a value: a null has no type yet, and a list is JSON. An unchanged field sends the value as it was. */
function field(value) {
  const input = typeof value === "boolean" ? h("select", {}, h("option", {}, "true"), h("option", {}, "false"))
    : h("input", typeof value === "number" ? { type: "number", step: "any" } : { type: "text", placeholder: value === null ? "null" : "" });
  input.value = value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
  return input;
}

/* Fills the form in once, and `again` on request. What the user typed stays, also while the service restarts. */
export function form(now, again = false) {
  $("another").disabled = !now.event; // the note above it says why
  const filled = now.asked === state.model && (state.known || !now.event || typed() !== state.typed);
  if (filled && !again) return;
  state.model = now.asked;
  fill(now.event ?? guess(now), Boolean(now.event));
}

/* Features to begin with: zeros, for each position or for the names of the largest weights; none if they are hashed. */
function guess({ model: { identity }, largest }) {
  if (identity.features === "positional") return Array(identity.dimension > MOST_ZEROS ? 0 : identity.dimension).fill(0);
  const names = identity.features === "named" ? (largest[0]?.weights ?? []).map(([name]) => name) : [];
  return Object.fromEntries(names.filter((name) => !name.includes("=")).map((name) => [name, 0]));
}

function fill(features, known) {
  const found = known ? paths(features) : [];
  const fields = found.length && found.length <= MOST_FIELDS ? found.map((path) => ({ path, was: within(features, path), field: field(within(features, path)) })) : null;
  for (const one of fields ?? []) one.shown = one.field.value;
  $("ask-note").textContent = known ? "The features of an event that was learned here; change what you like. An empty number is left out, and a list is JSON."
    : "This process has no event to fill in: give the features as JSON.";
  if (fields === null) {
    const text = h("textarea", { spellcheck: "false", id: "whole" });
    text.value = JSON.stringify(features, null, 1);
    $("fields").replaceChildren(h("label", { class: "all" }, "Features as JSON", text));
  } else $("fields").replaceChildren(...fields.map((one) => h("label", {}, cut(one.path.join(".")), one.field)));
  $("predict").disabled = false;
  Object.assign(state, { features, fields, known, typed: typed() });
  answer();
}

/* The value that a field was changed to; a null may become any type. */
function read(text, was) {
  if (typeof was === "string") return text;
  try {
    return text === "" ? null : JSON.parse(text);
  } catch (error) {
    if (was !== null) throw error;
    return text;
  }
}

function entered() {
  if (state.fields === null) return JSON.parse($("whole").value);
  const features = structuredClone(state.features);
  for (const { path, was, field, shown } of state.fields) {
    if (field.value !== shown) within(features, path.slice(0, -1))[path.at(-1)] = read(field.value, was);
  }
  return features;
}

/* Replaces the previous answer. */
function answer(said = "", ...contributions) {
  state.question = {};
  $("answer").replaceChildren(...(said ? [h("p", {}, ...[said].flat())] : []));
  $("contributions").replaceChildren(...contributions);
}

export async function predict(submitted) {
  submitted.preventDefault();
  const question = (state.question = {}), name = encodeURIComponent(state.model);
  let said;
  try {
    const body = JSON.stringify({ features: entered() });
    const response = await ask(`v1/models/${name}/predict?explain=true`, { method: "POST", body, headers: { "content-type": "application/json" } });
    said = await response.json();
    said = response.ok ? said : said.detail;
  } catch (error) {
    said = error instanceof SyntaxError ? "The features are not JSON." : "The service does not answer.";
  }
  if (question !== state.question) return; // there is a newer request
  if (typeof said === "string") return answer(said);
  const more = said.probability === undefined ? "" : `, probability ${percent(said.probability)}`;
  const against = said.runner_up === undefined ? "" : `, ahead of ${plain(said.runner_up)}`;
  const rows = said.contributions.slice(0, MOST_BARS).map(({ name, value, product }) => [name === "bias" ? name : `${name || "(no name)"} = ${number(value)}`, product]);
  answer(["Predicted ", h("strong", {}, plain(said.label)),
    ` with score ${number(said.score)}${more}${against}; version ${said.version}, ${some(said.unknown_features, "unknown feature")}, ${some(said.missing_features, "missing feature")}.`],
  h("p", { class: "note" }, sum(said, MOST_BARS)),
  bars(rows, "What each feature contributes", ["Feature", "Contribution as a bar", "Contribution"]));
}
