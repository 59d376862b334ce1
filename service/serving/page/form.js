// The form that asks for a prediction, with an event's features filled in.
import { ask } from "./ask.js";
import { $, bars, cut, h } from "./chart.js";
import { number, percent, some, sum } from "./words.js";

const MOST_BARS = 30;
/* Of which model and kind the form is, its features, and of each field where its value stands and what it was. */
const state = { model: "", key: "", features: {}, fields: null };

const within = (value, path) => path.reduce((at, name) => at[name], value);

/* What a value is changed in: a null has no kind yet, and a list is its JSON. What is not changed is sent as it was. */
function field(value) {
  const found = typeof value === "boolean" ? h("select", {}, h("option", {}, "true"), h("option", {}, "false"))
    : h("input", typeof value === "number" ? { type: "number", step: "any" } : { type: "text", placeholder: value === null ? "null" : "" });
  found.value = value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
  return found;
}

/* Filled in once, and anew where one asks for it: what was changed in it stays. */
export async function form(now, anew = false) {
  const key = `${now.asked} ${now.read}`;
  $("another").disabled = !now.read; // the note above it says why
  if (state.key === key && !anew) return;
  state.key = key;
  const { dimension, features: mode } = now.model.identity;
  const guess = mode === "positional" ? Array(dimension).fill(0) : Object.fromEntries((now.largest[0]?.weights ?? []).map(([name]) => [name, 0]));
  const event = now.read ? await newest(now.asked) : { features: null, fields: null };
  if (state.key !== key) return; // another model was chosen meanwhile
  if (!event) {
    state.key = ""; // the next poll tries again
    return;
  }
  const known = event.features !== null;
  [state.model, state.features] = [now.asked, known ? event.features : guess];
  $("ask-note").textContent = known ? "The features of an event that was learned here; change what you like. An empty number is left out, and a list is JSON."
    : "This process has read no event yet: give the features as JSON.";
  state.fields = event.fields?.map((path) => ({ path, was: within(state.features, path), field: field(within(state.features, path)) })) ?? null;
  for (const one of state.fields ?? []) one.shown = one.field.value;
  if (state.fields === null) {
    const text = h("textarea", { spellcheck: "false", id: "whole" });
    text.value = JSON.stringify(state.features, null, 1);
    $("fields").replaceChildren(h("label", { class: "all" }, "Features as JSON", text));
  } else $("fields").replaceChildren(...state.fields.map((one) => h("label", {}, ...cut(one.path.join(".")), one.field)));
  $("answer").replaceChildren();
  $("contributions").replaceChildren();
}

/* The newest event that the process read; null where it does not answer. */
async function newest(model) {
  try {
    const found = await ask(`/page/event?${new URLSearchParams({ model })}`);
    return found.ok ? await found.json() : null;
  } catch {
    return null;
  }
}

/* What a value was changed into; of a null it may be of any kind. */
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

export async function predict(submitted) {
  submitted.preventDefault();
  const answer = $("answer"), name = encodeURIComponent(state.model);
  try {
    const body = JSON.stringify({ features: entered() });
    const found = await ask(`/v1/models/${name}/predict?explain=true`, { method: "POST", body, headers: { "content-type": "application/json" } });
    const said = await found.json();
    if (!found.ok) return answer.replaceChildren(h("p", {}, said.detail));
    const more = said.probability === undefined ? "" : `, probability ${percent(said.probability)}`;
    const against = said.runner_up === undefined ? "" : `, ahead of ${said.runner_up}`;
    answer.replaceChildren(h("p", {}, "Predicted ", h("strong", {}, String(said.label)),
      ` with score ${number(said.score)}${more}${against}; version ${said.version}, ${some(said.unknown_features, "unknown feature")}.`));
    const rows = said.contributions.slice(0, MOST_BARS).map((one) => ({
      name: one.name === "bias" ? "bias" : `${one.name} = ${number(one.value)}`, value: one.product,
      text: `${number(one.product)}`,
    }));
    $("contributions").replaceChildren(h("p", { class: "note" }, sum(said, MOST_BARS)),
      bars(rows, "What each feature contributes", ["Feature", "Contribution as a bar", "Contribution"]));
  } catch (error) {
    answer.replaceChildren(h("p", {}, error instanceof SyntaxError ? "The features are not JSON." : "The service does not answer."));
  }
}
