// Read one series from CSV text: columns, numbers, times, frequency and season lengths.
// Errors name the line and what is wrong. The rules follow eattn.data and eattn.timeseries.

/**
 * A series with one value per step.
 * @typedef {object} Series
 * @property {string} name Name of the value column.
 * @property {string[]} columns Names of all columns with numbers.
 * @property {Float64Array} values Values; NaN if missing.
 * @property {string} step Step in words, such as "1 hour".
 * @property {number[]} seasons Season lengths in steps that the series completes twice.
 * @property {number} lower Lower bound of forecasts: 0 for counts, otherwise -Infinity.
 * @property {(row: number) => string} label Time of a row as text; rows may lie in the future.
 */

/** An error that a visitor can mend. */
export class CsvError extends Error {}

const SEPARATORS = [",", ";", "\t", "|"];
const MISSING = new Set(["", "nan", "na", "n/a", "#n/a", "null", "none", "-"]);
const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
// Season lengths in steps of one unit, and the name of the unit.
const UNITS = {
  second: [SECOND, [60, 3600]],
  minute: [MINUTE, [1440, 10080]],
  hour: [HOUR, [24, 168]],
  day: [DAY, [7]],
  week: [7 * DAY, [52]],
};
const LONGEST_SEASON = 2100;
const LONGEST_GAP = 1000; // steps; a longer gap, if also longer than the series, is an error
const USUAL = 0.8; // share of times on a grid that makes the others errors
const MIN_BUSINESS = 10; // days without a weekend
const TIME_EXAMPLE = "2024-01-31 or 2024-01-31 12:00";

/**
 * Read a series.
 * @param {string} text Content of a CSV file.
 * @param {string} [wanted] Name of the value column; by default the first with numbers.
 * @returns {Series}
 */
export function readSeries(text, wanted) {
  const { names, rows } = readTable(text);
  const comma = rows.separator !== ",";
  const first = rows[0];
  const isTime = (cell) => parseTime(cell, "dmy") !== null || parseTime(cell, "mdy") !== null;
  const named = names.findIndex((name) => /^(ds|time|date|timestamp|datetime|year|month|day|hour)$/i.test(name));
  let timeColumn = named >= 0 ? named : first.cells.findIndex(isTime);
  if (timeColumn < 0 && names.length > 1) timeColumn = integerColumn(rows);
  const numeric = names.flatMap((name, i) => (i !== timeColumn && hasNumbers(rows, i, comma) ? [i] : []));
  const preferred = numeric.find((i) => /^(y|value)$/i.test(names[i])) ?? numeric[0];
  const column = wanted === undefined ? preferred : names.indexOf(wanted);
  if (column === undefined || column < 0)
    throw new CsvError(`line ${first.line}: no column has numbers; found ${quoted(first.cells)}`);

  const values = rows.map(({ cells, line }) => {
    const value = parseNumber(cells[column], comma);
    if (value === null)
      throw new CsvError(`line ${line}: "${cells[column]}" in the column ${names[column]} is not a number`);
    if (Math.abs(value) > 1e15)
      throw new CsvError(`line ${line}: ${cells[column]} is too large; the limit is 1e15`);
    return value;
  });
  const known = values.filter((value) => value === value);
  if (known.length < 2) throw new CsvError(`the column ${names[column]} has ${known.length} values; at least 2 are needed`);
  const lower = known.every((value) => value >= 0 && Number.isInteger(value)) ? 0 : -Infinity;
  const grid = timeColumn < 0 ? plainGrid(rows.length) : timeGrid(rows, timeColumn);
  const start = grid.positions[grid.order.find((i) => values[i] === values[i])]; // skip missing values
  const length = grid.positions[grid.order[grid.order.length - 1]] + 1 - start;
  const filled = new Float64Array(length).fill(NaN);
  for (const i of grid.order) if (grid.positions[i] >= start) filled[grid.positions[i] - start] = values[i];
  return {
    name: names[column],
    columns: numeric.map((i) => names[i]),
    values: filled,
    step: grid.step,
    seasons: grid.seasons.filter((m) => m > 1 && m <= LONGEST_SEASON && 2 * m <= length),
    lower,
    label: (row) => grid.label(row + start),
  };
}

/** Split text into named columns and rows of cells with their line numbers. */
function readTable(text) {
  const lines = text.replace(/^\uFEFF/, "").split(/\r\n|\n|\r/);
  const filled = lines.flatMap((line, i) => (line.trim() ? [i] : []));
  if (filled.length < 2) throw new CsvError("there are no rows: paste a header such as time,value and at least two rows");
  const separator = findSeparator(filled.slice(0, 20).map((i) => lines[i]));
  const rows = filled.map((i) => ({ line: i + 1, cells: split(lines[i], separator, i + 1) }));
  const head = rows[0].cells;
  const header = head.every((cell) => Number.isNaN(Number(cell)) && parseTime(cell, "dmy") === null);
  const names = header ? head.map((cell, i) => cell || `column ${i + 1}`) : head.map((_, i) => `column ${i + 1}`);
  if (header) rows.shift();
  for (const { line, cells } of rows)
    if (cells.length !== names.length)
      throw new CsvError(
        `line ${line}: found ${cells.length} cell${cells.length > 1 ? "s" : ""}, but ` +
          `${header ? "the header has" : "the first line has"} ${names.length}`,
      );
  return { names, rows: Object.assign(rows, { separator }) };
}

/** Return the separator that occurs in all lines equally often, or else most often. */
function findSeparator(lines) {
  const quality = (separator) => {
    const counts = lines.map((line) => line.split(separator).length - 1);
    return (counts.every((count) => count && count === counts[0]) ? 1e6 : 0) + Math.min(...counts);
  };
  return SEPARATORS.reduce((best, other) => (quality(other) > quality(best) ? other : best));
}

/** Split a line into cells; cells in quotes may contain separators. */
function split(line, separator, number) {
  if (!line.includes('"')) return line.split(separator).map((cell) => cell.trim());
  const cells = [];
  let cell = "", quotes = false;
  for (let i = 0; i < line.length; i++) {
    if (line[i] === '"') {
      if (quotes && line[i + 1] === '"') cell += line[i++];
      else quotes = !quotes;
    } else if (line[i] === separator && !quotes) {
      cells.push(cell.trim());
      cell = "";
    } else cell += line[i];
  }
  if (quotes) throw new CsvError(`line ${number}: a quotation mark is not closed`);
  return [...cells, cell.trim()];
}

/** Return a number, NaN if it is missing, and null if the cell is something else. */
function parseNumber(cell, comma) {
  if (MISSING.has(cell.toLowerCase())) return NaN;
  if (comma && /^[-+]?\d+,\d+$/.test(cell)) cell = cell.replace(",", ".");
  const value = Number(cell);
  return Number.isFinite(value) ? value : null;
}

/** Return whether at least half of the first cells of a column are numbers. */
function hasNumbers(rows, column, comma) {
  const cells = rows.slice(0, 50).map((row) => parseNumber(row.cells[column], comma));
  const known = cells.filter((value) => value === null || value === value);
  return known.length ? known.filter((value) => value !== null).length >= known.length / 2 : rows.length > 50;
}

/** Return the first column if it holds ascending integers, or -1. */
function integerColumn(rows) {
  const ascends = rows.every(({ cells }, i) => /^\d+$/.test(cells[0]) && (!i || +cells[0] > +rows[i - 1].cells[0]));
  return ascends ? 0 : -1;
}

const FORMATS = [
  [/^(\d{4})-(\d{1,2})(?:-(\d{1,2}))?(?:[T ]+(.+))?$/, ([y, m, d, rest]) => [y, m, d ?? 1, rest]],
  [/^(\d{4})\/(\d{1,2})\/(\d{1,2})(?:\s+(.+))?$/, ([y, m, d, rest]) => [y, m, d, rest]],
  [/^(\d{1,2})\.(\d{1,2})\.(\d{4})(?:\s+(.+))?$/, ([d, m, y, rest]) => [y, m, d, rest]],
  [/^(\d{4})-?Q([1-4])$/i, ([y, q]) => [y, 3 * q - 2, 1, undefined]],
  [
    /^(\d{1,2})\/(\d{1,2})\/(\d{4})(?:\s+(.+))?$/,
    ([a, b, y, rest], order) => (order === "dmy" ? [y, b, a, rest] : [y, a, b, rest]),
  ],
];
const CLOCK = /^(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,]\d+)?)?\s*(Z|UTC|[-+]\d{2}:?\d{2})?$/i;

/** Return milliseconds since 1970 in UTC, or null if the text is not a time. */
function parseTime(text, order) {
  for (const [pattern, fields] of FORMATS) {
    const found = pattern.exec(text);
    if (!found) continue;
    const [year, month, day, rest] = fields(found.slice(1), order);
    const clock = rest === undefined ? ["", 0, 0, 0] : CLOCK.exec(rest);
    if (!clock) return null;
    const [, hour, minute, second, zone] = clock;
    const time = Date.UTC(+year, month - 1, +day);
    const real = new Date(time);
    if (real.getUTCMonth() !== month - 1 || real.getUTCDate() !== +day) return null; // 30 February
    if (hour > 23 || minute > 59 || second > 59) return null;
    const offset = /^([-+])(\d{2}):?(\d{2})$/.exec(zone ?? "");
    const shift = offset ? (offset[1] === "-" ? -1 : 1) * (offset[2] * HOUR + offset[3] * MINUTE) : 0;
    return time + hour * HOUR + minute * MINUTE + (second ?? 0) * SECOND - shift;
  }
  return null;
}

function plainGrid(length) {
  const order = Array.from({ length }, (_, i) => i);
  return { order, positions: order, step: "1 row", seasons: [], label: (row) => `row ${row + 1}` };
}

/** Return the position of each row on an even grid of times. */
function timeGrid(rows, column) {
  const cells = rows.map((row) => row.cells[column]);
  const integers = cells.every((cell) => /^[-+]?\d+$/.test(cell));
  const times = integers ? cells.map(Number) : readTimes(rows, column);
  const order = times.map((_, i) => i).sort((a, b) => times[a] - times[b]);
  const sorted = order.map((i) => times[i]);
  for (let i = 1; i < sorted.length; i++)
    if (sorted[i] === sorted[i - 1]) {
      const [a, b] = [rows[order[i - 1]], rows[order[i]]];
      throw new CsvError(
        `line ${b.line}: the time ${cells[order[i]]} occurs twice, first in line ${a.line}; ` +
          "the page reads one series, so keep the rows of one",
      );
    }
  const grid = integers ? integerGrid(sorted) : (monthGrid(sorted) ?? businessGrid(sorted) ?? clockGrid(sorted));
  const off = grid.positions.findIndex((position) => !Number.isInteger(position));
  if (off >= 0) {
    const { line } = rows[order[off]];
    throw new CsvError(
      `line ${line}: ${cells[order[off]]} is not a whole number of steps of ${grid.step} after ` +
        `${cells[order[0]]}; times must be evenly spaced, but rows may be missing`,
    );
  }
  for (let i = 1; i < order.length; i++) {
    const gap = grid.positions[i] - grid.positions[i - 1];
    if (gap > Math.max(LONGEST_GAP, order.length))
      throw new CsvError(
        `line ${rows[order[i]].line}: ${cells[order[i]]} is ${gap.toLocaleString("en")} steps of ${grid.step} ` +
          `after ${cells[order[i - 1]]}; is it a wrong time?`,
      );
  }
  const positions = new Array(order.length);
  order.forEach((row, i) => (positions[row] = grid.positions[i]));
  return { ...grid, order, positions };
}

function readTimes(rows, column) {
  const attempt = (order) => rows.map((row) => parseTime(row.cells[column], order));
  const dmy = attempt("dmy");
  const wrong = dmy.indexOf(null);
  const slashes = rows.some((row) => /^\d{1,2}\/\d{1,2}\/\d{4}/.test(row.cells[column]));
  const mdy = slashes ? attempt("mdy") : dmy;
  if (slashes && wrong < 0 && !mdy.includes(null))
    throw new CsvError(
      `line ${rows[0].line}: "${rows[0].cells[column]}" may have the day or the month first; write ${TIME_EXAMPLE}`,
    );
  if (wrong < 0) return dmy;
  if (slashes && !mdy.includes(null)) return mdy;
  const { line, cells } = rows[mdy.indexOf(null)];
  throw new CsvError(`line ${line}: "${cells[column]}" is not a time such as ${TIME_EXAMPLE}`);
}

const gcd = (a, b) => (b ? gcd(b, a % b) : a);
const differences = (sorted) => sorted.slice(1).map((time, i) => time - sorted[i]);

function integerGrid(sorted) {
  const size = evenStep(sorted);
  const positions = sorted.map((time) => (time - sorted[0]) / size);
  return { positions, step: `${size}`, seasons: [], label: (row) => `${sorted[0] + row * size}` };
}

/** Return a grid of months if all times lie on the same, or on the last, day of a month. */
function monthGrid(sorted) {
  const dates = sorted.map((time) => new Date(time));
  if (differences(sorted).some((step) => step < 28 * DAY)) return null;
  const last = (date) => new Date(date.getTime() + DAY).getUTCDate() === 1;
  if (!dates.every((date) => date.getUTCDate() === dates[0].getUTCDate()) && !dates.every(last)) return null;
  const months = dates.map((date) => 12 * date.getUTCFullYear() + date.getUTCMonth());
  const count = differences(months).reduce(gcd);
  return {
    positions: months.map((month) => (month - months[0]) / count),
    step: count === 1 ? "1 month" : `${count} months`,
    seasons: 12 % count ? [] : [12 / count],
    label: (row) => {
      const month = months[0] + row * count;
      return `${Math.floor(month / 12)}-${String((month % 12) + 1).padStart(2, "0")}`;
    },
  };
}

/** Return a grid of business days if no day is on a weekend. */
function businessGrid(sorted) {
  if (sorted.length < MIN_BUSINESS || differences(sorted).reduce(gcd) !== DAY) return null;
  const weekday = (time) => new Date(time).getUTCDay();
  if (sorted.some((time) => weekday(time) % 6 === 0)) return null;
  const monday = sorted[0] - (weekday(sorted[0]) - 1) * DAY;
  const count = (time) => 5 * Math.floor((time - monday) / (7 * DAY)) + Math.floor(((time - monday) % (7 * DAY)) / DAY);
  const start = count(sorted[0]);
  return {
    positions: sorted.map((time) => count(time) - start),
    step: "1 business day",
    seasons: [5],
    label: (row) => text(monday + (7 * Math.floor((start + row) / 5) + ((start + row) % 5)) * DAY, DAY),
  };
}

function clockGrid(sorted) {
  const size = evenStep(sorted);
  const [name, [unit, seasons]] = Object.entries(UNITS).findLast(([, [unit]]) => size % unit === 0) ?? [
    "millisecond",
    [1, []],
  ];
  const count = size / unit;
  return {
    positions: sorted.map((time) => (time - sorted[0]) / size),
    step: `${count} ${name}${count > 1 ? "s" : ""}`,
    seasons: seasons.flatMap((m) => (m % count ? [] : [m / count])),
    label: (row) => text(sorted[0] + row * size, size),
  };
}

/** Return the greatest step that fits all times, or the usual one if a few times do not fit it. */
function evenStep(sorted) {
  const steps = differences(sorted);
  const common = steps.reduce(gcd), counts = new Map();
  for (const step of steps) counts.set(step, (counts.get(step) ?? 0) + 1);
  const usual = [...counts].reduce((best, other) => (other[1] > best[1] ? other : best))[0];
  const slots = (sorted[sorted.length - 1] - sorted[0]) / common + 1;
  const fitting = sorted.filter((time) => (time - sorted[0]) % usual === 0).length;
  return 2 * sorted.length <= slots && fitting >= USUAL * sorted.length ? usual : common;
}

function text(time, size) {
  const iso = new Date(time).toISOString();
  return size % DAY === 0 && time % DAY === 0 ? iso.slice(0, 10) : iso.slice(0, size % MINUTE ? 19 : 16).replace("T", " ");
}

const quoted = (cells) => cells.map((cell) => `"${cell}"`).join(", ");
