// Makes elements, and draws figures: lines with their names at their ends, bars, a boundary.
import { clipped, duration, number, short } from "./words.js";

export const $ = (id) => document.getElementById(id);
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/* A name as text of either direction, which wraps first after a separator and not within a number. */
export const cut = (name) => h("bdi", {}, ...(name || "(no name)").split(/(?<=[/._=:?&-])(?![/._=:?&\d-])/).flatMap((piece, i) => (i ? [h("wbr"), piece] : [piece])));

// --- Charts: lines with their names at their ends

function ticks(low, high, steps) {
  const step = steps.find((one) => (high - low) / one <= 5) ?? steps.at(-1);
  const first = Math.ceil(low / step - 1e-9), more = Math.floor(high / step + 1e-9) - first;
  return Array.from({ length: Math.max(more + 1, 0) }, (_, i) => (first + i) * step + 0); // never -0
}
export function decimals(low, high, least = 0) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 5 || 1));
  return ticks(low, high, [1, 2, 5, 10].map((n) => Math.max(n * power, least)));
}
const TIMES = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 86400, 604800];

export function scales(width, height, right, x, y) {
  const box = { left: 46, right: width - right, top: 10, bottom: height - 20 };
  const within = (v, [low, high]) => (Math.min(Math.max(v, low), high) - low) / (high - low || 1);
  return {
    ...box,
    x: (v) => box.left + within(v, x) * (box.right - box.left),
    y: (v) => box.bottom - within(v, y) * (box.bottom - box.top),
  };
}

export function frame(at, xs, ys, xname, yname) {
  const drawn = [];
  for (const v of ys) {
    drawn.push(s("line", { class: "grid", x1: at.left, x2: at.right, y1: at.y(v), y2: at.y(v) }));
    drawn.push(s("text", { x: at.left - 6, y: at.y(v) + 4, "text-anchor": "end" }, yname(v)));
  }
  let end = -Infinity, last = "";
  for (const v of xs) {
    const name = xname(v), x = at.x(v);
    if (name === last || x - name.length * 4 < end || x + name.length * 3.5 > at.right + 30) continue;
    [end, last] = [x + name.length * 4, name];
    drawn.push(s("text", { x, y: at.bottom + 16, "text-anchor": "middle" }, name));
  }
  return drawn;
}

function path(points, at) {
  let d = "", pen = "M";
  for (const [x, y] of points) {
    if (y === null || y === undefined) pen = "M";
    else [d, pen] = [`${d}${pen}${at.x(x).toFixed(1)} ${at.y(y).toFixed(1)}`, "L"];
  }
  return d;
}

const hasLength = ({ points }) => points.some(([x, y], i) => i && y !== null && points[i - 1][1] !== null && points[i - 1][0] !== x);

/* A piece of a line next to its name, long enough to show its dashes. */
const SAMPLE = 30;
export const sample = (kind) => s("svg", { class: "sample", "aria-hidden": "true" }, s("line", { class: `line ${kind}`, x1: 0, x2: SAMPLE, y1: 4, y2: 4 }));

/* Draws `lines` of {name, kind, points}; a line without a length is a dot. `band` has [x, low, high]; `log` draws
   decades; with `time` x is in seconds before now. `begin` and `room` (characters of the longest name) align two charts
   with the same x. */
export function chart(svg, { lines, band = [], log = false, begin = null, time = false, range = null, least = 0, room = 0, empty = "Nothing to draw yet", yname, label }) {
  const scaled = (v) => (v === null || v === undefined ? null : log ? Math.log10(Math.max(v, 1)) : v);
  const kept = lines.map((line) => ({ ...line, points: line.points.map(([x, y]) => [x, scaled(y)]) }));
  const shown = kept.filter((line) => line.points.some(([, y]) => y !== null));
  svg.setAttribute("aria-label", shown.length ? label : `${label} Nothing to draw yet.`);
  const xs = shown.flatMap((line) => line.points.map(([x]) => x));
  const ys = shown.flatMap((line) => line.points.map(([, y]) => y)).filter((y) => y !== null);
  if (!ys.length) return svg.replaceChildren(s("text", { x: 10, y: 24 }, empty));
  const x = [Math.min(...xs, begin ?? Infinity), Math.max(...xs)];
  if (x[0] === x[1]) x[0] -= 1;
  const y = range ?? [0, Math.max(...ys, least, log ? 1 : 0) * 1.05 || 1];
  const width = svg.clientWidth || 600, height = svg.clientHeight || 220;
  const before = width < 450 ? 12 : SAMPLE, most = Math.floor((width / 2 - before - 17) / 6);
  const names = Math.max(room, ...shown.map((line) => clipped(line.name).length));
  const at = scales(width, height, Math.min(names * 6.5 + before + 17, width / 2), x, y);
  const xticks = time ? ticks(x[0], x[1], TIMES) : decimals(x[0], x[1], 1);
  const ago = (v) => (v > -0.5 ? "now" : duration(-v));
  const yticks = log ? ticks(y[0], y[1], [1, 2, 3]) : decimals(y[0], y[1], least);
  const drawn = frame(at, xticks, yticks, time ? ago : short.format, (v) => yname(log ? 10 ** v : v));
  if (band.length > 1) {
    const back = [...band].reverse();
    drawn.push(s("path", { class: "band", d: `${path([...band.map(([x, low]) => [x, low]), ...back.map(([x, , high]) => [x, high])], at)}Z` }));
  }
  const ends = [];
  for (const line of shown) {
    const points = line.points.filter(([, y]) => y !== null), [u, v] = points.at(-1), kind = `line ${line.kind}`;
    drawn.push(hasLength(line) ? s("path", { class: kind, d: path(line.points, at) }) : s("circle", { class: kind, cx: at.x(u), cy: at.y(v), r: 2 }));
    ends.push({ name: clipped(line.name, Math.min(most, 22)), kind, y: at.y(v) });
  }
  ends.sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + 14); });
  ends.forEach((end, i) => { end.y = Math.min(end.y, height - 8 - 14 * (ends.length - 1 - i)); });
  for (const { name, kind, y } of ends) {
    drawn.push(s("line", { class: kind, x1: at.right + 8, x2: at.right + 8 + before, y1: y, y2: y }));
    drawn.push(s("text", { class: "name", x: at.right + before + 13, y: y + 4 }, name));
  }
  svg.replaceChildren(...drawn);
}

/* The head and body of a table of rows of cells; `figures` says which columns have only numbers. */
export function table(heads, rows, figures = () => false) {
  const head = heads.map((text, i) => h("th", { scope: "col", class: figures(i) ? "number" : null }, text));
  return [h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows.map((cells) => h("tr", {}, ...cells)))];
}

/* A table of [name, value], with a bar to the left or the right for each value. */
export function bars(rows, caption, heads) {
  const most = Math.max(...rows.map(([, value]) => Math.abs(value)), 1e-300);
  const [head, body] = table(heads, rows.map(([name, value]) => {
    const size = (50 * Math.abs(value)) / most, x = value < 0 ? 50 - size : 50;
    const bar = s("svg", { "aria-hidden": "true" },
      s("rect", { class: `bar ${value < 0 ? "minus" : "plus"}`, x: `${x}%`, width: `${size}%`, y: "15%", height: "70%" }),
      s("line", { class: "zero", x1: "50%", x2: "50%", y1: 0, y2: "100%" }));
    return [h("th", { scope: "row" }, cut(name)), h("td", {}, bar), h("td", { class: "number" }, number(value))];
  }));
  head.className = "unseen";
  return h("table", { class: "bars" }, h("caption", { class: "unseen" }, caption), head, body);
}

export function facts(list, rows) {
  list.replaceChildren(...rows.map(([name, value, more]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value, more ? h("small", {}, more) : null))));
}

/* The path where the prediction changes: where the score is 0 or, with several labels, where the two largest are equal. */
export function boundary(scores, x, y, at) {
  const steps = 240, of = ([bias, a, b], [u, v]) => bias + a * u + b * v;
  const line = ([bias, a, b], largest) => {
    if (!a && !b) return "";
    const steep = Math.abs(a * (x[1] - x[0])) > Math.abs(b * (y[1] - y[0]));
    const points = Array.from({ length: steps + 1 }, (_, i) => {
      const u = x[0] + ((x[1] - x[0]) * i) / steps, v = y[0] + ((y[1] - y[0]) * i) / steps;
      const [p, q] = steep ? [-(bias + b * v) / a, v] : [u, -(bias + a * u) / b];
      return [p, p >= x[0] && p <= x[1] && q >= y[0] && q <= y[1] && largest([p, q]) ? q : null];
    });
    return path(points, at);
  };
  if (scores.length === 1) return line(scores[0], () => true);
  return scores.map((one, i) => scores.slice(i + 1).map((other) =>
    line(one.map((part, k) => part - other[k]), (p) => scores.every((third) => third === one || third === other || of(third, p) <= of(one, p))),
  ).join("")).join("");
}
