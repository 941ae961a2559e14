// Draw a stream on two canvases: its last rows with the forecast, and an overview of all rows.

const MARGIN = { top: 14, right: 10, bottom: 26, left: 54 };
const BANDS = 4; // pairs of quantiles around the median
const ANOMALY = 0.5; // scores from here on are marked
const FIRST = 20; // rows before which the usual size of errors is not known

/** Return whether a row is marked. */
export const isAnomaly = (scores, row) => row >= FIRST && scores[row] >= ANOMALY;

/**
 * What is drawn. Arrays have one element per row of the series, and are filled as rows arrive.
 * @typedef {object} Rows
 * @property {import("./csv.js").Series} series
 * @property {Float32Array} edges Quantiles 0.1, 0.5 and 0.9 of the forecast one step before.
 * @property {Float32Array} scores Anomaly scores.
 * @property {number} read Number of rows read.
 * @property {number} horizon
 * @property {number} levels Number of quantiles.
 * @property {Float64Array | null} fan Forecast after the last row: [horizon, levels].
 */

export class Chart {
  /**
   * @param {HTMLCanvasElement} main
   * @param {HTMLCanvasElement} overview
   * @param {HTMLElement} tip Shows the row under the pointer.
   */
  constructor(main, overview, tip) {
    this.main = main;
    this.overview = overview;
    this.tip = tip;
    /** @type {Rows | null} */
    this.rows = null;
    this.span = 0; // rows shown; 0 for as many as fit well
    this.end = null; // last row shown, or null to follow the stream
    this.hover = null;
    this.low = this.high = NaN;
    this.waiting = false;
    this.#listen();
  }

  /** Show another series from its start. */
  show(rows) {
    this.rows = rows;
    this.end = this.hover = null;
    this.low = this.high = NaN;
    this.tip.hidden = true;
    this.draw();
  }

  zoom(factor) {
    const least = 20, most = Math.max(this.rows?.series.values.length ?? least, least);
    this.span = Math.round(Math.min(Math.max(this.#span() * factor, least), most));
    this.low = this.high = NaN;
    this.draw();
  }

  /** Draw before the next frame. */
  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.#paint();
    });
  }

  #span() {
    return this.span || Math.round(Math.min(Math.max(this.main.clientWidth / 3.5, 80), 280));
  }

  /** Return the first row shown, the row after the last one shown, and the last one with a forecast. */
  #window() {
    const { read, horizon } = this.rows, span = this.#span();
    const end = Math.min(Math.max(this.end ?? read, Math.min(span, read)), read);
    return { from: Math.max(end - span, 0), end, to: Math.max(end - span, 0) + span + horizon };
  }

  #paint() {
    const style = getComputedStyle(this.main);
    const color = (name) => style.getPropertyValue(name).trim();
    this.colors = {
      line: color("--md-typeset-color"), soft: color("--soft"), rule: color("--rule"),
      fan: color("--md-accent-fg-color"), mark: color("--mark"), back: color("--md-default-bg-color"),
    };
    this.font = `12px ${style.fontFamily}`;
    const main = context(this.main), overview = context(this.overview);
    if (!this.rows || !this.rows.read) return;
    this.#paintMain(main, this.main.clientWidth, this.main.clientHeight);
    this.#paintOverview(overview, this.overview.clientWidth, this.overview.clientHeight);
  }

  #paintMain(g, width, height) {
    const { series, edges, scores, read, horizon, levels, fan } = this.rows, { colors } = this;
    const { from, end, to } = this.#window(), following = end === read;
    const plot = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
    const x = (row) => MARGIN.left + ((row - from) / (to - 1 - from)) * plot.width;
    this.#follow(from, end, following);
    const y = (value) => MARGIN.top + (1 - (value - this.low) / (this.high - this.low)) * plot.height;
    this.scale = { x, from, end, plot };

    g.font = this.font;
    this.#axes(g, x, y, from, to, width, height);
    g.save();
    g.beginPath();
    g.rect(MARGIN.left, 0, plot.width + MARGIN.right, height - MARGIN.bottom + 1);
    g.clip();

    g.fillStyle = colors.fan;
    g.globalAlpha = 0.16;
    band(g, from, end, (row) => [x(row), y(edges[3 * row]), y(edges[3 * row + 2])]);
    if (following && fan) {
      const half = (levels - 1) / 2, now = read - 1, last = series.values[now];
      const at = (h, level) => (h ? y(fan[(h - 1) * levels + level]) : y(last));
      const begin = last === last ? 0 : 1;
      for (let i = 0; i < Math.min(BANDS, half); i++)
        band(g, begin, horizon + 1, (h) => [x(now + h), at(h, i), at(h, levels - 1 - i)]);
      g.globalAlpha = 1;
      g.strokeStyle = colors.fan;
      g.lineWidth = 2;
      line(g, begin, horizon + 1, (h) => [x(now + h), at(h, half)]);
      g.globalAlpha = 0.5;
      g.strokeStyle = colors.soft;
      g.lineWidth = 1;
      g.setLineDash([3, 4]);
      line(g, 0, 2, (i) => [Math.round(x(now)) + 0.5, i ? height - MARGIN.bottom : MARGIN.top]);
      g.setLineDash([]);
    }
    g.globalAlpha = 1;
    g.strokeStyle = colors.line;
    g.lineWidth = 1.5;
    g.lineJoin = "round";
    if (end - from > 2 * plot.width) columns(g, series.values, from, end, x, y);
    else line(g, from, end, (row) => [x(row), y(series.values[row])]);
    for (let row = from; row < end; row++) if (isAnomaly(scores, row)) this.#mark(g, x(row), y(series.values[row]));
    if (this.hover !== null && this.hover < end && this.hover >= from) {
      g.strokeStyle = colors.soft;
      g.lineWidth = 1;
      line(g, 0, 2, (i) => [Math.round(x(this.hover)) + 0.5, i ? height - MARGIN.bottom : MARGIN.top]);
    }
    g.restore();
  }

  #mark(g, x, y) {
    g.beginPath();
    g.arc(x, y, 5, 0, 2 * Math.PI);
    g.fillStyle = this.colors.mark;
    g.fill();
    g.lineWidth = 2;
    g.strokeStyle = this.colors.back;
    g.stroke();
  }

  /** Move the vertical axis smoothly to the values that are shown. */
  #follow(from, end, following) {
    const { series, edges, scores, fan, levels } = this.rows;
    let low = Infinity, high = -Infinity;
    const include = (value) => {
      if (value < low) low = value;
      if (value > high) high = value;
    };
    for (let row = from; row < end; row++) {
      include(series.values[row]);
      if (row >= FIRST && !isAnomaly(scores, row)) for (const i of [0, 2]) include(edges[3 * row + i]);
    }
    if (following && fan) {
      const [least, most] = [low, high], reach = Math.max(most - least, 1e-9);
      for (let i = 0; i < fan.length; i += levels)
        for (const value of [fan[i], fan[i + levels - 1]])
          include(Math.min(Math.max(value, least - 0.6 * reach), most + 0.6 * reach));
    }
    if (!(high > low)) [low, high] = [low - 1, low + 1];
    const room = 0.06 * (high - low);
    [low, high] = [low - room, high + room];
    const ease = Number.isNaN(this.low) || !following ? 1 : 0.2;
    const before = [this.low, this.high];
    this.low = ease === 1 ? low : this.low + ease * (low - this.low);
    this.high = ease === 1 ? high : this.high + ease * (high - this.high);
    const moved = Math.abs(this.low - before[0]) + Math.abs(this.high - before[1]);
    if (moved > 0.004 * (high - low)) this.draw();
  }

  #axes(g, x, y, from, to, width, height) {
    const { soft, rule } = this.colors, { series } = this.rows;
    g.fillStyle = soft;
    g.strokeStyle = rule;
    g.lineWidth = 1;
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (const value of ticks(this.low, this.high, height / 60)) {
      const at = Math.round(y(value)) + 0.5;
      line(g, 0, 2, (i) => [i ? width - MARGIN.right : MARGIN.left, at]);
      g.fillText(short(value), MARGIN.left - 8, at);
    }
    g.textBaseline = "top";
    const wide = g.measureText(series.label(from)).width, count = Math.floor((width - MARGIN.left) / (wide + 30));
    const every = Math.max(Math.ceil((to - from) / Math.max(count, 1)), 1);
    for (let row = Math.ceil(from / every) * every; row < to; row += every) {
      const at = x(row);
      if (at + wide / 2 > width || at - wide / 2 < 0) continue;
      g.textAlign = "center";
      g.fillText(series.label(row), at, height - MARGIN.bottom + 8);
    }
  }

  #paintOverview(g, width, height) {
    const { series, scores, read } = this.rows, { colors } = this, total = series.values.length;
    const x = (row) => MARGIN.left + (row / Math.max(total - 1, 1)) * (width - MARGIN.left - MARGIN.right);
    let low = Infinity, high = -Infinity;
    for (let row = 0; row < read; row++) {
      if (series.values[row] < low) low = series.values[row];
      if (series.values[row] > high) high = series.values[row];
    }
    if (!(high > low)) [low, high] = [low - 1, low + 1];
    const y = (value) => 5 + (1 - (value - low) / (high - low)) * (height - 10);
    const { from, end } = this.#window();
    g.fillStyle = colors.fan;
    g.globalAlpha = 0.14;
    g.fillRect(x(from), 0, Math.max(x(end - 1) - x(from), 3), height);
    g.globalAlpha = 1;
    g.strokeStyle = colors.soft;
    g.lineWidth = 1;
    columns(g, series.values, 0, read, x, y);
    g.fillStyle = colors.mark;
    for (let row = 0; row < read; row++) if (isAnomaly(scores, row)) g.fillRect(x(row) - 1, height - 5, 2, 5);
  }

  #listen() {
    const pan = (event) => {
      if (!this.rows || !event.buttons) return;
      const width = this.overview.clientWidth - MARGIN.left - MARGIN.right;
      const row = ((event.offsetX - MARGIN.left) / width) * this.rows.series.values.length;
      const end = Math.round(row + this.#span() / 2);
      this.end = end >= this.rows.read ? null : Math.max(end, 1);
      this.draw();
    };
    this.overview.addEventListener("pointerdown", (event) => {
      this.overview.setPointerCapture(event.pointerId);
      pan(event);
    });
    this.overview.addEventListener("pointermove", pan);
    this.main.addEventListener("pointermove", (event) => this.#point(event));
    this.main.addEventListener("pointerleave", () => this.#point(null));
    new ResizeObserver(() => this.draw()).observe(this.main);
    new MutationObserver(() => this.draw()).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  }

  /** Describe the row under the pointer. */
  #point(event) {
    const { from, end, plot, x } = this.scale ?? {};
    this.hover = null;
    if (event && this.rows?.read && plot) {
      const { to } = this.#window();
      const row = from + Math.round(((event.offsetX - MARGIN.left) / plot.width) * (to - 1 - from));
      const ahead = row - this.rows.read + 1;
      if (row >= from && row < end) this.hover = row;
      const text = this.hover !== null ? this.#describe(row)
        : ahead > 0 && ahead <= this.rows.horizon && end === this.rows.read ? this.#describeAhead(row, ahead) : "";
      this.tip.textContent = text;
      this.tip.hidden = !text;
      const left = Math.min(x(row) + 12, this.main.clientWidth - this.tip.offsetWidth - 4);
      this.tip.style.transform = `translate(${Math.max(left, 4)}px, ${MARGIN.top}px)`;
    } else this.tip.hidden = true;
    this.draw();
  }

  #describe(row) {
    const { series, edges, scores } = this.rows, value = series.values[row];
    const [low, , high] = edges.subarray(3 * row, 3 * row + 3);
    const expected = low === low ? `\nexpected ${short(low)} to ${short(high)}` : "";
    const found = value === value ? short(value) : "missing";
    return `${series.label(row)}\n${found}${expected}\nanomaly score ${scores[row].toFixed(2)}`;
  }

  #describeAhead(row, ahead) {
    const { series, fan, levels } = this.rows, at = (ahead - 1) * levels;
    const median = fan[at + (levels - 1) / 2];
    return `${series.label(row)}\nforecast ${short(median)}\n80 %: ${short(fan[at])} to ${short(fan[at + levels - 1])}`;
  }
}

/** Return the context of a canvas, cleared and with the resolution of the screen. */
function context(canvas) {
  const ratio = devicePixelRatio || 1, width = Math.round(canvas.clientWidth * ratio);
  const height = Math.round(canvas.clientHeight * ratio);
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}

/** Draw a line through points; it is interrupted where a coordinate is NaN. */
function line(g, from, to, point) {
  let drawing = false;
  g.beginPath();
  for (let i = from; i < to; i++) {
    const [x, y] = point(i);
    if (y !== y) drawing = false;
    else if (drawing) g.lineTo(x, y);
    else {
      g.moveTo(x, y);
      drawing = true;
    }
  }
  g.stroke();
}

/** Fill between two lines, without the points where one is NaN. */
function band(g, from, to, point) {
  const upper = [];
  g.beginPath();
  for (let i = from; i < to; i++) {
    const [x, low, high] = point(i);
    if (low !== low) continue;
    g.lineTo(x, low);
    upper.push([x, high]);
  }
  for (const [x, high] of upper.reverse()) g.lineTo(x, high);
  g.fill();
}

/** Draw the range of the values in each column of pixels. */
function columns(g, values, from, to, x, y) {
  let low = Infinity, high = -Infinity, column = null;
  g.beginPath();
  for (let row = from; row <= to; row++) {
    const at = row < to ? Math.round(x(row)) : null;
    if (at !== column && low <= high) {
      g.moveTo(column + 0.5, y(low) + 0.5);
      g.lineTo(column + 0.5, y(high) - 0.5);
      [low, high] = [values[row - 1], values[row - 1]];
    }
    column = at;
    if (values[row] < low || low !== low) low = values[row];
    if (values[row] > high || high !== high) high = values[row];
  }
  g.stroke();
}

/** Return about `count` round numbers between two values. */
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((size) => size >= raw);
  const found = [];
  for (let i = Math.ceil(low / step); i <= high / step; i++) found.push(i * step);
  return found;
}

/** Return a number with up to four digits. */
export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6 || (size && size < 1e-3)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? 6 : 4 });
}
