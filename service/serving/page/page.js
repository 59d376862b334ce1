// Asks for one body every few seconds and draws it. Data goes into the page as text, never as markup.
import { $, bars, boundary, chart, decimals, facts, frame, h, s, sample, scales, table } from "./chart.js";
import { ask, form, predict } from "./form.js";
import { behind, bound, brief, clipped, confused, count, duration, named, number, outage, percent, plain, positive, served, short, some, span, standing, takeover, verdict } from "./words.js";

// Milliseconds between two polls. A connection without requests is closed after http.idle_timeout, 75 seconds.
const SECOND = 1000, BUSY = 2 * SECOND, RESTING = 6 * SECOND;
const AFTER = 100, TRAIL = 8, MOST_LINES = 5;
const state = { now: null, points: [], since: 0, trail: [], drawn: {}, missing: "", timer: 0, asking: false };
state.model = new URLSearchParams(location.search).get("model");

/* Draws a part only if its data changed, so that a selection in it stays. */
function part(name, data, draw) {
  const key = JSON.stringify(data);
  if (state.drawn[name] !== key) {
    state.drawn[name] = key;
    draw();
  }
}

// --- The parts: each is drawn from `now`

function tiles(now) {
  const model = now.model, served = model.served_accuracy;
  facts($("tiles"), [
    ["Events learned", count(model.events), some(model.mistakes, "mistake")],
    ["Events a second", now.rate === null ? "–" : short.format(now.rate)],
    ["Lag", count(now.lag), behind(now)],
    ["Accuracy", percent(served.recent), `recent; always the same label: ${percent(model.baseline.recent)}`],
    ["Version", count(model.version), `${duration(now.time - Date.parse(model.saved_at) / SECOND)} old, ${some(model.ahead, "event")} ahead`],
  ]);
}

function mistakes(now) {
  const of = (i) => state.points.map((point) => [point[1], point[i]]), model = now.model;
  const log = $("log").checked;
  chart($("mistakes"), {
    lines: [{ name: "mistakes", kind: "main", points: of(2) }, { name: "bound", kind: "limit", points: of(3) }],
    log, least: log ? 0 : 1, yname: short.format,
    label: `${some(model.mistakes, "mistake")} after ${some(model.events, "event")}; the bound is ${count(model.bound)}.`,
  });
  $("mistakes-note").textContent = bound(model);
}

function accuracy(now) {
  const model = now.model, name = named(model), points = state.points.filter((point) => point[1] > 0), all = $("all").checked, which = all ? "all" : "recent";
  const others = Object.keys(points.at(-1)?.[5] ?? {}).filter((one) => one !== model.serve && one !== "baseline" && one !== "previous").slice(0, MOST_LINES);
  const kinds = new Map([[model.serve, "main"], ...others.map((one, i) => [one, `c${i}`]), ["baseline", "rest"]]);
  const lines = [...kinds].map(([one, kind]) => ({ name: name(one), kind, points: points.map((point) => [point[1], point[5][one]?.[all ? 1 : 0] ?? null]) }));
  const settled = lines.flatMap((line) => line.points.slice(Math.floor(points.length / 4))).map(([, y]) => y).filter((y) => y !== null);
  const low = Math.max(0, Math.min(1, ...settled) - 0.05), high = Math.min(1, Math.max(0, ...settled) + 0.03);
  chart($("accuracy"), {
    lines, band: all ? points.filter((point) => point[6]).map((point) => [point[1], ...point[6]]) : [], range: [low, high],
    yname: (v) => percent(v, high - low < 0.04 ? 1 : 0),
    label: `${percent(model.served_accuracy[which])} of ${which} predictions were right, with always the more frequent label ${percent(model.baseline[which])}.`,
  });
  $("accuracy-note").textContent = `Over ${which} events, each predicted before it was learned${all ? "; with the 95\u00a0% interval of the weights that answer" : ""}.`;
  const rows = [["last", model.accuracy], ["average", model.average_accuracy], ...model.candidates.map((one) => [one.name, one.accuracy, one.diverged ?? verdict(one)])];
  const areas = new Map([...model.candidates.map((one) => [one.name, one.auc]), [model.serve, model.auc]]), ranked = (one, said) => [said, areas.get(one) && `recent AUC ${areas.get(one).toFixed(3)}`].filter(Boolean).join("; ");
  rows.sort((a, b) => (b[0] === model.serve) - (a[0] === model.serve));
  rows.push(["answers given", model.answered_accuracy, "what requests got, as far as it was logged"]);
  rows.push(["baseline", model.baseline, "the most frequent label"]);
  rows.push(["previous label", model.previous_label_baseline, "the label of the event before"]);
  part("predictors", [rows, ...areas, ...kinds.keys()], () => $("predictors").replaceChildren(
    h("caption", { class: "unseen" }, "Accuracy of all predictors"),
    ...table(["Predictor", "Recent", "All (95 % interval)", "Against the model"], rows.filter(([, figures]) => figures).map(([one, figures, said = ""]) => [
      h("th", { scope: "row" }, kinds.has(one) ? sample(kinds.get(one)) : null, name(one)), h("td", {}, percent(figures.recent)),
      h("td", {}, percent(figures.all), figures.all_interval ? h("small", {}, span(...figures.all_interval)) : null), h("td", {}, ranked(one, said)),
    ]))));
}

function stream(now) {
  const end = state.points.at(-1)?.[0] ?? 0, begin = (state.points[0]?.[0] ?? end) - end, name = "events a second", rates = [], lags = state.points.map((point) => [point[0] - end, point[4]]);
  state.points.forEach((point, i) => {
    const before = state.points[i - 1];
    if (!before || point[0] <= before[0]) return;
    const rate = Math.max(0, point[1] - before[1]) / (point[0] - before[0]);
    if (!rate) rates.push([before[0] - end, 0]); // nothing was learned in this time, which may be long
    rates.push([point[0] - end, rate]);
  });
  chart($("rate"), { lines: [{ name, kind: "main", points: rates }], begin, time: true, least: 1, yname: short.format,
    label: `${now.rate === null ? "No rate known" : short.format(now.rate)} events a second now.` });
  chart($("lag"), { lines: [{ name: "lag", kind: "limit", points: lags }], begin, time: true, least: 1, room: name.length, yname: short.format,
    empty: now.lag === null ? `The lag is ${behind(now)}` : undefined, label: `Lag ${count(now.lag)} now: ${behind(now)}.` });
}

function weights(now) {
  const byLabel = now.largest.length > 0 && now.largest[0].label !== null;
  $("class-choice").hidden = !byLabel;
  part("classes", now.largest.map((one) => one.label), () => {
    $("class").replaceChildren(...now.largest.map((one, i) => h("option", { value: i }, plain(one.label ?? ""))));
  });
  const one = now.largest[byLabel ? Number($("class").value) : 0];
  part("weights", one, () => {
    const rows = one ? [...one.weights, ["bias", one.bias]] : [];
    $("weights").replaceChildren(bars(rows, "The largest weights", ["Feature", "Weight as a bar", "Weight"]));
  });
}

function confusion(now) {
  const model = now.model;
  $("positive").textContent = positive(now);
  part("confusion", [now.confusion, now.of_last, model.labels, now.labels, model.serve], () => {
    const by = confused(now), cell = (text, right = false) => h("td", { class: right ? "number right" : "number" }, text);
    // With two labels the line below the table has the recall. With many labels the table has only the recall.
    const few = now.confusion.length > 0, recalls = now.confusion.length === 2 ? [] : model.labels;
    const times = now.confusion.length > 5 ? brief.format : count; // so that ten columns have room
    const rows = (few ? now.labels : recalls).map((label, i) => [h("th", { scope: "row" }, plain(few ? label : label.label)),
      ...(few ? now.confusion[i].map((n, j) => cell(times(n), i === j)) : [cell(count(label.events))]),
      ...(recalls.length ? [cell(percent(recalls[i].recall.all))] : [])]);
    const heads = [...(few ? [`Label, and predicted by ${by}`, ...now.labels.map(plain)] : ["Label (the most frequent)", "Events"]),
      ...(recalls.length ? [`Recall of ${served(model)}`] : [])];
    $("confusion").replaceChildren(h("caption", { class: "unseen" }, `Labels against predictions of ${by}`), ...table(heads, rows, (i) => i > 0));
  });
  const quantiles = model.margins, drawn = [quantiles, model.loss, $("margins").clientWidth];
  part("margins", drawn, () => margins($("margins"), quantiles, model.loss));
}
function margins(svg, found, loss) {
  svg.setAttribute("aria-label", found ? `Margins of recent events: a tenth are below ${number(found["0.1"])}, half below ${number(found["0.5"])}, nine tenths below ${number(found["0.9"])}.` : "No margins yet.");
  $("margins-note").textContent = found ? `Margins y·s/‖x‖ of recent events by the last weights, the middle 80\u00a0% and the median; left of 0 they were mistakes. Mean loss ${number(loss)}.` : "";
  if (!found) return svg.replaceChildren();
  const [low, middle, high] = ["0.1", "0.5", "0.9"].map((q) => found[q]), x = [Math.min(0, low), Math.max(0, high)];
  const at = scales(svg.clientWidth || 600, svg.clientHeight || 104, 30, x, [0, 1]);
  const mid = (at.top + at.bottom) / 2;
  svg.replaceChildren(...frame(at, decimals(x[0], x[1]), [], number, number),
    s("line", { class: "zero", x1: at.x(0), x2: at.x(0), y1: at.top, y2: at.bottom }),
    s("rect", { class: "band", x: at.x(low), width: Math.max(1, at.x(high) - at.x(low)), y: mid - 14, height: 28 }),
    s("line", { class: "line main", x1: at.x(middle), x2: at.x(middle), y1: mid - 18, y2: mid + 18 }));
}

function rejected(now) {
  const model = now.model, counts = Object.entries(model.rejected).sort((a, b) => b[1] - a[1]);
  part("rejected", [counts, now.set_aside, model.skipped, now.skipped], () => {
    const row = (name, n, last) => [h("th", { scope: "row" }, name), h("td", { class: "number" }, count(n)), h("td", {}, last ?? "none since this process began")];
    const where = (partition, offset) => `partition ${partition}, offset ${count(Number(offset))}`;
    const rows = counts.map(([reason, n]) => {
      const last = now.set_aside[reason];
      return row(reason, n, last && `${where(last.partition, last.offset)}: ${last.detail}`);
    });
    if (model.skipped || now.skipped) rows.push(row("skipped", model.skipped, now.skipped && where(...now.skipped)));
    $("rejected").replaceChildren(rows.length ? h("table", {}, ...table(["Reason", "Records", "The last of them"], rows, (i) => i === 1)) : h("p", { class: "note" }, "None so far."));
  });
}

function version(now) {
  const model = now.model, ids = model.identity;
  const rows = [
    ["Current", `${model.version}, of ${new Date(model.saved_at).toLocaleString("en-GB")}`],
    ["Learned by", model.learning_here ? "this process" : now.learner || "another process"],
    ["Kept", now.kept.map(([kept, at]) => `${kept} (${new Date(at).toLocaleTimeString("en-GB")})`).join(", ") || "none yet"],
    ["Rule", `${ids.rule}, η = ${number(ids.eta)}, ${ids.features} features`],
    ["Answers", [named(model)(model.serve), takeover(model)].filter(Boolean).join(", ")],
    ["Columns", count(model.columns)],
    ...(model.held === null ? [] : [
      ["Held events", model.held_since ? `${count(model.held)}, the oldest of ${new Date(model.held_since).toLocaleString("en-GB")}` : count(model.held)],
      ["Labels", Object.entries(model.label_outcomes).map(([outcome, n]) => `${count(n)} ${outcome.replace("_", " ")}`).join(", ")],
    ]),
    ["State digest", model.state_digest], // not cut, as `inspect` and `verify` print it
  ];
  part("version", rows, () => $("version").replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

// --- The plane of a model of two numbers

const MARKS = [
  "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-5 0H5M0-5V5", "M-4-4H4V4H-4Z", "M0-5L5 4H-5Z", "M0-5L5 0L0 5L-5 0Z", "M-4-4L4 4M-4 4L4-4",
];
const mark = (place, x, y) => s("path", { class: `mark m${place % 6}`, d: MARKS[place % 6], transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });

function plane(now) {
  const of = now.plane;
  $("plane-card").hidden = of === null;
  if (of === null) return;
  const svg = $("plane"), key = JSON.stringify(of.scores);
  if (state.trail.at(-1) !== key) state.trail = [...state.trail, key].slice(-TRAIL);
  const range = (i) => {
    const values = of.events.map((event) => event[i]), low = Math.min(...values, Infinity), high = Math.max(...values, -Infinity);
    const room = 0.08 * (high - low) || Math.max(1, 0.08 * Math.abs(high)); // more than its last digit
    return values.length ? [low - room, high + room] : [-3, 3];
  };
  const x = range(0), y = range(1), at = scales(svg.clientWidth || 600, svg.clientHeight || 320, 14, x, y);
  const drawn = frame(at, decimals(...x), decimals(...y), number, number);
  state.trail.forEach((scores, i) => drawn.push(s("path", {
    class: "line main", opacity: ((i + 1) / state.trail.length) ** 2, d: boundary(JSON.parse(scores), x, y, at),
  })));
  for (const [a, b, place] of of.events) drawn.push(mark(place, at.x(a), at.y(b)));
  drawn.push(s("text", { class: "name", x: at.right, y: at.bottom - 6, "text-anchor": "end" }, clipped(of.names[0], 30)));
  drawn.push(s("text", { class: "name", x: at.left + 6, y: at.top + 10 }, clipped(of.names[1], 30)));
  svg.replaceChildren(...drawn);
  svg.setAttribute("aria-label", `The last ${some(of.events.length, "event")} by ${of.names[0]} and ${of.names[1]}, and where the prediction changes.`);
  part("key", now.labels, () => $("plane-key").replaceChildren(...now.labels.slice(0, 12).map((label, i) =>
    h("li", {}, s("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, mark(i, 0, 0)), plain(label)))));
}

// --- Asking

/* After a restart of the process its history is empty: the page keeps earlier points that are still true. */
function remember([begin, ...more]) {
  if (begin) state.points = [...state.points.filter((point) => point[0] < begin[0] && point[1] <= begin[1]), begin, ...more];
}

function draw() {
  const now = state.now;
  if (!now?.model) return;
  for (const one of [tiles, mistakes, accuracy, stream, weights, plane, confusion, rejected, version, form]) {
    try {
      one(now);
    } catch (error) { // the other parts are still drawn
      reportError(error);
    }
  }
}

const old = () => (state.since ? ` These figures are ${duration((Date.now() - state.since) / SECOND)} old.` : "");

function show(now) {
  if (now.asked !== state.now?.asked) [state.points, state.trail, state.drawn, state.since] = [[], [], {}, 0];
  else if (!now.model && state.now.model) { // the process has restarted, and reads its snapshot
    $("state").textContent = "";
    return say(`${outage(now)}The process has just started: ${now.why_not}.${old()}`);
  }
  state.now = now;
  state.model ??= now.asked;
  part("models", [now.models, now.asked], () => {
    $("models").replaceChildren(...now.models.map((name) => h("option", { value: name }, name)));
    $("models").value = now.asked ?? "";
  });
  $("footer").textContent = `Perceptron Service ${now.release}`;
  $("main").hidden = now.model === null;
  const model = now.model;
  say(`${state.missing}${outage(now)}${model ? "" : `Nothing to show yet: ${now.why_not}.`}`);
  $("state").textContent = model ? standing(now) : "";
  if (!model) return;
  state.since = Date.now();
  remember(now.points);
  $("advice").hidden = !model.advice.length;
  part("advice", model.advice, () => $("advice").querySelector("ul").replaceChildren(...model.advice.map((line) => h("li", {}, line))));
  draw();
}

function say(text) {
  if ($("notice").textContent !== text) $("notice").textContent = text;
}

async function poll() {
  clearTimeout(state.timer);
  if (document.hidden || state.asking) return;
  state.asking = true;
  let every = SECOND;
  try {
    const query = new URLSearchParams(state.model === null ? {} : { model: state.model });
    const response = await ask(`page/now?${query}`);
    $("access").hidden = response.status !== 401;
    if (response.ok) {
      const now = await response.json();
      show(now);
      if (now.model) every = now.rate === 0 ? RESTING : BUSY;
    } else if (response.status === 401) {
      $("main").hidden = true;
      $("state").textContent = "";
      say(sessionStorage.getItem("token") ? "The service does not accept this token." : "The service asks for a token. It is kept until this tab is closed.");
    } else if (response.status === 404) {
      state.missing = `There is no model “${state.model}” here: the first is shown. `;
      state.model = null;
    } else say(`The service answers with an error (${response.status}). Trying again.`);
  } catch (error) {
    if (!(error instanceof TypeError) && error.name !== "TimeoutError") reportError(error);
    say(`The service does not answer. Trying again.${old()}`);
    $("state").textContent = "";
  }
  state.asking = false;
  state.timer = setTimeout(poll, every + AFTER - (Date.now() % every)); // all pages at once: see page.py
}

$("models").addEventListener("change", () => {
  [state.model, state.missing] = [$("models").value, ""];
  history.replaceState(null, "", `?model=${encodeURIComponent(state.model)}`);
  poll();
});
$("access").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  poll();
});
$("log").addEventListener("change", draw);
$("all").addEventListener("change", draw);
$("class").addEventListener("change", draw);
$("features").addEventListener("submit", predict);
$("another").addEventListener("click", () => form(state.now, true));
document.addEventListener("visibilitychange", poll);
addEventListener("focus", poll);
addEventListener("resize", draw);
$("state").textContent = "Waiting for the first answer…";
poll();
