// The page "In the browser": read a CSV, stream it through the worker, and show what it finds.

import { Chart, isAnomaly, short } from "./chart.js";
import { CsvError, readSeries } from "./csv.js";

const BATCH_MS = 12; // work per message at full speed, so that the page stays smooth
const MOST = 4000; // rows per message
const LISTED = 8; // anomalies in the list
const root = /** @type {HTMLElement} */ (document.getElementById("stream"));
/** @param {string} name */
const part = (name) => root.querySelector(`[data-part="${name}"]`);
const chart = new Chart(part("chart"), part("overview"), part("tip"));

/** A worker that answers each message with one message. */
class Runner {
  constructor() {
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.answers = [];
    this.worker.addEventListener("message", ({ data }) => {
      const { resolve, reject } = this.answers.shift();
      if (data.type === "failed") reject(new Error(data.message));
      else resolve(data);
    });
    this.worker.addEventListener("error", (event) => {
      for (const { reject } of this.answers.splice(0)) reject(new Error(event.message ?? "the worker did not start"));
    });
  }

  ask(message, transfer = []) {
    return new Promise((resolve, reject) => {
      this.answers.push({ resolve, reject });
      this.worker.postMessage(message, transfer);
    });
  }
}

/** The series being read. Tests use `start` and `advance`, too. */
class Stream {
  constructor() {
    this.runner = new Runner();
    this.ready = this.runner.ask({ type: "load" });
    this.rows = null;
    this.text = "";
    this.playing = null; // an object while rows are read
    this.anomalies = [];
    this.count = 0; // anomalies
    this.elapsed = 0; // milliseconds of computation
    this.due = 0; // rows that the speed allows
    this.number = 0; // of starts: an answer to an earlier one is ignored
  }

  get done() {
    return this.rows !== null && this.rows.read === this.rows.series.values.length;
  }

  /** Read a CSV and prepare to stream it; return whether it is still wanted then. */
  async start(text, column) {
    const series = readSeries(text, column), number = ++this.number;
    Object.assign(this, { text, playing: null, rows: null });
    await this.ready;
    const values = series.values.slice();
    const message = { type: "start", values, seasons: series.seasons, lower: series.lower };
    const { horizon, levels, seasons, bytes } = await this.runner.ask(message, [values.buffer]);
    if (number !== this.number) return false;
    const length = series.values.length;
    this.rows = {
      series, horizon, levels: levels.length, seasons, bytes, fan: null, read: 0,
      edges: new Float32Array(3 * length).fill(NaN), scores: new Float32Array(length),
    };
    Object.assign(this, { anomalies: [], count: 0, elapsed: 0, due: 0 });
    chart.show(this.rows);
    show(this);
    return true;
  }

  /** Stream up to `count` more rows. */
  async advance(count) {
    const number = this.number, { rows } = this;
    const { first, rows: read, edges, scores, fan, elapsed, bytes } = await this.runner.ask({ type: "run", count });
    if (number !== this.number) return;
    rows.edges.set(edges, 3 * first);
    rows.scores.set(scores, first);
    rows.read += read;
    rows.fan = fan ?? rows.fan;
    rows.bytes = bytes;
    this.elapsed += elapsed;
    for (let row = first; row < rows.read; row++) if (isAnomaly(rows.scores, row)) this.#note(row);
    chart.draw();
    show(this);
  }

  /** Count an anomaly; neighbouring rows are one, listed with its highest score. */
  #note(row) {
    const { scores } = this.rows, [last] = this.anomalies;
    if (last && row - last.end <= 3) {
      last.end = row;
      if (scores[row] > scores[last.row]) last.row = row;
      return;
    }
    this.count += 1;
    this.anomalies.unshift({ row, end: row });
    this.anomalies.length = Math.min(this.anomalies.length, LISTED);
  }

  async play() {
    if (this.playing || !this.rows) return;
    if (this.done && !(await this.start(this.text, this.rows.series.name))) return;
    const turn = (this.playing = {});
    show(this);
    let before = await new Promise(requestAnimationFrame);
    while (this.playing === turn && !this.done) {
      const now = await new Promise(requestAnimationFrame);
      if (this.playing !== turn) return;
      const speed = Number(part("speed").value); // rows per second; 0 for all
      this.due = speed ? Math.min(this.due + (speed * Math.min(now - before, 250)) / 1000, MOST) : this.#batch();
      before = now;
      const count = Math.floor(this.due);
      if (!count) continue;
      this.due -= count;
      await this.advance(count);
    }
    if (this.playing === turn) this.pause();
  }

  pause() {
    this.playing = null;
    show(this);
  }

  /** Number of rows that take about BATCH_MS. */
  #batch() {
    const each = this.rows.read ? this.elapsed / this.rows.read : 1;
    return Math.min(Math.max(Math.round(BATCH_MS / each), 1), MOST);
  }
}

/** Show numbers, buttons and the list of anomalies. */
function show(stream) {
  const { rows, anomalies } = stream;
  if (!rows) return;
  const { series, read, bytes } = rows, total = series.values.length;
  part("rows").textContent = `${read.toLocaleString("en")} of ${total.toLocaleString("en")}`;
  part("state").textContent = `${(bytes / 1024).toFixed(1)} KB`;
  part("time").textContent = read ? `${(stream.elapsed / read).toFixed(2)} ms` : "–";
  part("count").textContent = stream.count.toLocaleString("en");
  const { seasons } = rows;
  part("about").textContent =
    `${series.name}: one row per ${series.step.replace(/^1 /, "")}, ` +
    (seasons.length ? `seasons of ${seasons.join(" and ")} rows` : "no seasons");
  part("play").textContent = stream.playing ? "Pause" : stream.done ? "Again" : "Play";
  for (const name of ["play", "out", "in"]) part(name).disabled = false;
  part("follow").hidden = chart.end === null;
  const list = part("anomalies");
  list.replaceChildren(
    ...anomalies.map(({ row }) => {
      const item = document.createElement("li"), button = document.createElement("button");
      button.type = "button";
      button.textContent = `${series.label(row)}: ${short(series.values[row])}`;
      button.addEventListener("click", () => look(row, rows.read));
      const score = document.createElement("span");
      score.textContent = rows.scores[row].toFixed(2);
      item.append(button, score);
      return item;
    }),
  );
  list.parentElement.hidden = !anomalies.length;
}

/** Show the rows around one row. */
function look(row, read) {
  chart.end = row + 60 < read ? row + 60 : null;
  part("follow").hidden = chart.end === null;
  chart.draw();
}

/** Start a CSV and play it; show what is wrong with it. */
async function open(text, column) {
  const problem = part("problem");
  problem.hidden = true;
  try {
    if (!(await stream.start(text, column))) return;
    const { series } = stream.rows, select = part("column");
    select.replaceChildren(...series.columns.map((name) => new Option(name, name, false, name === series.name)));
    select.parentElement.hidden = series.columns.length < 2;
    part("stage").hidden = false;
    chart.draw();
    await stream.play();
  } catch (error) {
    stream.pause();
    problem.textContent =
      error instanceof CsvError ? `This CSV cannot be read. ${sentence(error.message)}` : sentence(error.message);
    problem.hidden = false;
  }
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

async function openFile(file) {
  if (!file) return;
  part("text").value = "";
  choose(null);
  await open(await file.text());
}

/** Mark the example that is shown. */
function choose(button) {
  for (const other of root.querySelectorAll("[data-example]"))
    other.setAttribute("aria-pressed", String(other === button));
}

const stream = new Stream();
const examples = [...root.querySelectorAll("[data-example]")];
const texts = examples.map(async (button) =>
  (await fetch(new URL(`../../models/${button.dataset.example}.csv`, import.meta.url))).text(),
);
examples.forEach((button, i) =>
  button.addEventListener("click", async () => {
    choose(button);
    await open(await texts[i]);
  }),
);
part("file").addEventListener("change", ({ target }) => openFile(target.files[0]).then(() => (target.value = "")));
part("read").addEventListener("click", () => {
  choose(null);
  open(part("text").value);
});
part("play").addEventListener("click", () => (stream.playing ? stream.pause() : stream.play()));
part("in").addEventListener("click", () => chart.zoom(0.5));
part("out").addEventListener("click", () => chart.zoom(2));
part("follow").addEventListener("click", () => {
  chart.end = null;
  part("follow").hidden = true;
  chart.draw();
});
part("overview").addEventListener("pointerup", () => show(stream));
part("column").addEventListener("change", ({ target }) => open(stream.text, target.value));
root.addEventListener("dragover", (event) => {
  event.preventDefault();
  root.classList.add("drop");
});
root.addEventListener("dragleave", () => root.classList.remove("drop"));
root.addEventListener("drop", (event) => {
  event.preventDefault();
  root.classList.remove("drop");
  openFile(event.dataTransfer.files[0]);
});
root.stream = stream;
try {
  await Promise.all([stream.ready, ...texts]);
  part("loading").hidden = true;
  root.dataset.ready = "";
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) examples[0].click();
} catch (error) {
  part("loading").hidden = true;
  part("problem").textContent = `The model could not be loaded. ${sentence(error.message)}`;
  part("problem").hidden = false;
}
