"use strict";
// The charts of the status page: lines or stacked areas over the last ten minutes, drawn by uPlot.
//
// A chart has a list below it with the values at its end, or at the pointer; arrow keys move the pointer. Colours come from the style
// sheet, so that a change of theme draws anew; lines differ in their dashes, too.

// Seconds that a chart covers at least and at most.
const WINDOW = [60, 600];
const DASHES = [[], [9, 4], [2, 3], [12, 3, 2, 3], [5, 5], [14, 5], [3, 6], [8, 3, 2, 3, 2, 3], []];
const charts = [];

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

class Chart {
  // `about`: id, title, unit, show (a value as text), stacked, logarithmic, empty (what is said without data).
  constructor(parent, about) {
    this.about = about;
    this.title = element("h2", { id: `${about.id}-title` }, about.title);
    this.unit = element("span", { class: "quiet" }, about.unit);
    this.plot = element("div", { class: "plot", tabindex: "0", role: "group", "aria-labelledby": `${about.id}-title` });
    this.legend = element("ul", { class: "legend", "aria-label": `Values: ${about.title}` });
    const caption = element("figcaption", {}, this.title, this.unit);
    this.figure = element("figure", { class: "chart", id: about.id }, caption, this.plot, this.legend);
    parent.append(this.figure);
    this.plot.addEventListener("keydown", (event) => this.onKey(event));
    this.plot.addEventListener("blur", () => this.point(null));
    new ResizeObserver(() => this.resize()).observe(this.plot);
    this.lines = [];
    // The elements of the list with the values, in the order of the lines.
    this.shown = [];
    charts.push(this);
  }

  // Shows `lines` ({ name, slot, values, told }) over the times `at`, which end at `now`; `told` are the values of the list, where they
  // differ.
  show(now, at, lines) {
    this.now = now;
    const same = lines.length === this.lines.length && lines.every((line, index) => line.name === this.lines[index].name && line.slot === this.lines[index].slot);
    this.at = at;
    this.lines = lines;
    if (!same || !this.drawn) {
      this.rebuild();
    } else {
      this.drawn.setData(this.data(), false);
      this.rescale();
    }
    this.values();
  }

  // Series as uPlot takes them: of stacked ones each is the sum of those below it and its own.
  data() {
    if (!this.about.stacked) return [this.at, ...this.lines.map((line) => line.values)];
    const sums = new Array(this.at.length).fill(0);
    return [this.at, ...this.lines.map((line) => line.values.map((value, index) => {
      if (value === null) return null;
      sums[index] += value;
      return sums[index];
    }))];
  }

  rebuild() {
    if (this.drawn) this.drawn.destroy();
    this.drawn = null;
    this.plot.replaceChildren();
    this.shown = this.lines.map(() => element("span", { class: "value" }));
    this.legend.replaceChildren(...this.lines.map((line, index) => element(
      "li", {}, element("i", { class: `k${line.slot}` }), element("span", { class: "name", title: line.name }, line.name), this.shown[index],
    )));
    if (this.lines.length === 0) {
      this.plot.append(element("p", { class: "empty" }, this.about.empty));
      return;
    }
    this.drawn = new uPlot(this.options(), this.data(), this.plot);
    this.rescale();
  }

  options() {
    const { stacked, logarithmic, show } = this.about;
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 }, font: "12px system-ui, sans-serif" };
    // Of a logarithmic axis only powers of ten have a line and a label.
    const filter = (u, splits) => splits.map((value) => (Number.isInteger(Math.round(Math.log10(value) * 1e6) / 1e6) ? value : null));
    const decades = logarithmic ? { filter, grid: { ...axis.grid, filter }, ticks: { ...axis.ticks, filter } } : {};
    const series = this.lines.map((line) => {
      const stroke = colour(`--c${line.slot}`);
      return { label: line.name, stroke, width: stacked ? 1 : 1.75, dash: stacked ? [] : DASHES[line.slot], fill: stacked ? stroke + "b0" : undefined, points: { show: false }, spanGaps: false };
    });
    return {
      width: Math.max(this.plot.clientWidth, 50),
      height: this.plot.clientHeight,
      padding: [10, 26, 0, 0],
      legend: { show: false },
      cursor: { y: false, sync: { key: "headworks" }, drag: { x: false, y: false }, points: { show: !stacked } },
      scales: {
        x: { time: true, range: () => this.span() },
        y: logarithmic
          ? { distr: 3, range: (u, least, most) => (least === null ? [0.01, 1] : uPlot.rangeLog(Math.max(least, 1e-4), Math.max(most, 1e-3), 10, true)) }
          : { range: (u, least, most) => [0, most > 0 ? most * 1.08 : 1] },
      },
      series: [{}, ...series],
      bands: stacked ? series.slice(1).map((_, index) => ({ series: [index + 2, index + 1] })) : undefined,
      axes: [
        { ...axis, size: 28, space: 80, values: (u, splits) => splits.map((at) => format.clock(at).slice(0, this.now - this.at[0] < 300 ? 8 : 5)) },
        { ...axis, size: 50, space: 34, ...decades, values: (u, splits) => splits.map((value) => (value === null || value === undefined ? "" : format.axis(value))) },
      ],
      hooks: { setCursor: [() => this.values()] },
    };
  }

  rescale() {
    const [min, max] = this.span();
    this.drawn.setScale("x", { min, max });
  }

  // The times that are shown: all samples, within limits.
  span() {
    const [least, most] = WINDOW;
    const all = this.at.length > 0 ? this.now - this.at[0] : 0;
    return [this.now - Math.min(Math.max(all, least), most), this.now];
  }

  resize() {
    if (this.drawn) this.drawn.setSize({ width: Math.max(this.plot.clientWidth, 50), height: this.plot.clientHeight });
  }

  // Writes the values at the pointer, or the last ones, into the list.
  values() {
    const pointed = this.drawn ? this.drawn.cursor.idx : null;
    const index = pointed === null || pointed === undefined ? this.at.length - 1 : pointed;
    const at = pointed === null || pointed === undefined ? "" : ` at ${format.clock(this.at[index])}`;
    this.lines.forEach((line, number) => {
      const value = (line.told || line.values)[index];
      if (this.shown[number]) this.shown[number].textContent = value === null || value === undefined ? "-" : this.about.show(value);
    });
    this.unit.textContent = this.about.unit + at;
  }

  point(index) {
    if (!this.drawn) return;
    const left = index === null ? -10 : this.drawn.valToPos(this.at[index], "x");
    this.drawn.setCursor({ left, top: index === null ? -10 : 5 });
  }

  onKey(event) {
    const last = this.at ? this.at.length - 1 : -1;
    const pointed = this.drawn ? this.drawn.cursor.idx : null;
    const from = pointed === null || pointed === undefined ? last + 1 : pointed;
    const moves = { ArrowLeft: from - 1, ArrowRight: from + 1, PageUp: from - 30, PageDown: from + 30, Home: 0, End: last };
    if (event.key === "Escape") this.point(null);
    if (last < 0 || !(event.key in moves)) return;
    event.preventDefault();
    this.point(Math.min(Math.max(moves[event.key], 0), last));
  }
}

// Another theme has other colours.
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts) if (chart.at) chart.rebuild(), chart.values();
});
