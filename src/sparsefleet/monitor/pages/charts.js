"use strict";

// Line charts as SVG: few, small, without a library. Each has a caption with its newest values, or
// those under the pointer; with the keyboard, arrow keys move along the curve.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 360, HEIGHT = 150, LEFT = 44, BOTTOM = 18, TOP = 8, RIGHT = 6;

function svgElement(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toFixed(2) + " G";
  if (size >= 1e6) return (value / 1e6).toFixed(2) + " M";
  if (size >= 1e4) return (value / 1e3).toFixed(1) + " k";
  if (size >= 100 || value === Math.round(value)) return value.toFixed(0);
  if (size >= 1) return value.toFixed(2);
  return value.toPrecision(3);
}

function formatSeconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1e-3) return (value * 1e6).toFixed(0) + " µs";
  if (value < 1) return (value * 1e3).toFixed(1) + " ms";
  return value.toFixed(1) + " s";
}

function formatClock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString();
}

class Chart {
  // curves: [{name, label}], the names of the history's curves and what people call them.
  constructor(parent, title, curves, format) {
    this.title = title;
    this.curves = curves;
    this.format = format;
    this.at = null;
    this.figure = document.createElement("figure");
    this.caption = document.createElement("figcaption");
    this.svg = svgElement("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none",
      role: "img", tabindex: "0"});
    this.figure.append(this.caption, this.svg);
    parent.append(this.figure);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.select(null));
    this.svg.addEventListener("blur", () => this.select(null));
    this.svg.addEventListener("keydown", (event) => this.move(event));
  }

  update(history) {
    this.history = history;
    this.draw();
  }

  point(event) {
    const times = this.history ? this.history.time : [];
    if (times.length < 2) return;
    const box = this.svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * WIDTH;
    const share = (x - LEFT) / (WIDTH - LEFT - RIGHT);
    const wanted = times[0] + share * (times[times.length - 1] - times[0]);
    let best = 0;
    times.forEach((time, i) => {
      if (Math.abs(time - wanted) < Math.abs(times[best] - wanted)) best = i;
    });
    this.select(best);
  }

  move(event) {
    const steps = {ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9};
    if (!(event.key in steps) || !this.history) return;
    event.preventDefault();
    const last = this.history.time.length - 1;
    const from = this.at === null ? last : this.at;
    this.select(Math.min(Math.max(from + steps[event.key], 0), last));
  }

  select(index) {
    this.at = index;
    this.draw();
  }

  draw() {
    const times = this.history.time;
    const last = times.length - 1;
    const shown = this.at === null || this.at > last ? last : this.at;
    this.tell(shown);
    const values = this.curves.flatMap((c) => (this.history[c.name] || []).filter((v) => v !== null));
    this.svg.replaceChildren();
    if (values.length === 0 || last < 1) return;
    let low = Math.min(...values), high = Math.max(...values);
    if (low > 0 && low < high / 3) low = 0;
    if (high === low) { high = high + Math.abs(high || 1) * 0.1; low = low - Math.abs(low || 1) * 0.1; }
    const span = times[last] - times[0] || 1;
    const x = (time) => LEFT + (time - times[0]) / span * (WIDTH - LEFT - RIGHT);
    const y = (value) => TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM);
    this.axes(low, high, y, times[0], times[last]);
    this.curves.forEach((curve, number) => this.line(curve, number, x, y));
    if (this.at !== null) {
      this.svg.append(svgElement("line", {class: "cursor", x1: x(times[shown]), x2: x(times[shown]),
        y1: TOP, y2: HEIGHT - BOTTOM}));
    }
  }

  axes(low, high, y, begin, end) {
    this.svg.append(svgElement("path", {class: "axis",
      d: `M${LEFT},${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}`}));
    for (const value of [low, (low + high) / 2, high]) {
      const text = svgElement("text", {x: LEFT - 4, y: y(value) + 4, "text-anchor": "end"});
      text.textContent = this.format(value);
      this.svg.append(text);
    }
    const first = svgElement("text", {x: LEFT, y: HEIGHT - 4});
    first.textContent = formatClock(begin);
    const newest = svgElement("text", {x: WIDTH - RIGHT, y: HEIGHT - 4, "text-anchor": "end"});
    newest.textContent = formatClock(end);
    this.svg.append(first, newest);
  }

  line(curve, number, x, y) {
    const values = this.history[curve.name] || [];
    let path = "", pen = "M";
    values.forEach((value, i) => {
      if (value === null) { pen = "M"; return; }
      path += `${pen}${x(this.history.time[i]).toFixed(1)},${y(value).toFixed(1)}`;
      pen = "L";
    });
    this.svg.append(svgElement("path", {class: `curve s${number}`, d: path,
      "vector-effect": "non-scaling-stroke"}));
  }

  tell(index) {
    const title = document.createElement("b");
    title.textContent = this.title;
    this.caption.replaceChildren(title);
    const words = [];
    this.curves.forEach((curve, number) => {
      const values = this.history[curve.name] || [];
      const text = `${curve.label} ${this.format(values[index])}`;
      const span = document.createElement("span");
      span.className = `f${number}`;
      span.textContent = text;
      this.caption.append(span);
      words.push(text);
    });
    if (this.at !== null) {
      const when = document.createElement("span");
      when.textContent = formatClock(this.history.time[index]);
      this.caption.append(when);
    }
    this.svg.setAttribute("aria-label", `${this.title}: ${words.join(", ")}`);
  }
}
