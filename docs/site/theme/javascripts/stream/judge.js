// Compare values with their forecasts: adapt the calibration and score anomalies.
// The same as Predictor._judge, Calibration and Surprise of eattn.timeseries.

/**
 * An entry of models.json.
 * @typedef {object} Model
 * @property {number} horizon
 * @property {number[]} levels Quantile levels in ascending order, with 0.5.
 * @property {number[]} steps Steps ahead that have factors.
 * @property {number[][]} factors Log factors of the quantiles after training: [steps][levels].
 */

export class Judge {
  /**
   * @param {Model} model
   * @param {Record<string, number>} constants
   * @param {number} lower Lower bound of forecasts, or -Infinity.
   */
  constructor(model, constants, lower) {
    this.model = model;
    this.constants = constants;
    this.lower = lower;
    this.half = model.levels.indexOf(0.5);
    this.edges = [0.1, 0.5, 0.9].map((level) => model.levels.indexOf(level));
    this.factors = model.factors.map((row) => Float64Array.from(row));
    this.mixed = new Float64Array(model.levels.length);
    /** Forecasts whose time has not come: for step s, the last s of them. */
    this.pending = model.steps.map((step) => new Float64Array(step * model.levels.length).fill(NaN));
    this.count = 0; // values seen
    this.surprise = { values: 0, recent: 0, mean: 0, variance: 1, level: 0, spread: 0 };
  }

  /** Size of everything that is kept, in bytes. */
  get bytes() {
    const arrays = [...this.factors, ...this.pending];
    return arrays.reduce((sum, array) => sum + array.byteLength, 0) + 8 * 7;
  }

  /**
   * Compare a value with its forecasts.
   * @param {number} y The value; NaN if missing.
   * @returns {{edges: number[], score: number}} Quantiles 0.1, 0.5 and 0.9 of its forecast one
   * step before, and its anomaly score.
   */
  see(y) {
    const { steps } = this.model, { turn } = this.constants;
    const longer = this.count % turn ? 0 : Math.floor(this.count / turn) % steps.length;
    let edges = [NaN, NaN, NaN], score = 0;
    for (const index of longer ? [0, longer] : [0]) {
      const raw = this.#slot(index);
      if (Number.isNaN(raw[0])) continue;
      const q = this.#calibrated(raw, this.factors[index]);
      if (!index) edges = this.edges.map((i) => q[i]);
      if (Number.isNaN(y)) continue;
      if (!index) score = this.#score(y, edges);
      this.#adapt(this.factors[index], q, y);
    }
    return { edges, score };
  }

  /**
   * Remember the forecast after a value, and return it calibrated.
   * @param {Float64Array} raw Quantiles [horizon, levels] without calibration.
   * @returns {Float64Array}
   */
  forecast(raw) {
    const { horizon, levels, steps } = this.model, found = new Float64Array(raw.length);
    const row = (h) => raw.subarray((h - 1) * levels.length, h * levels.length);
    steps.forEach((step, index) => this.#slot(index).set(row(step)));
    this.count += 1;
    for (let h = 1, upper = 0; h <= horizon; h++) {
      if (h > steps[upper]) upper += 1;
      const lower = Math.max(upper - 1, 0), whole = Math.log(steps[upper] / steps[lower]);
      const share = whole ? Math.log(h / steps[lower]) / whole : 1; // factors lie between two steps
      for (let i = 0; i < levels.length; i++)
        this.mixed[i] = (1 - share) * this.factors[lower][i] + share * this.factors[upper][i];
      found.set(this.#calibrated(row(h), this.mixed), (h - 1) * levels.length);
    }
    return found;
  }

  /** Return the place of the forecast of the next value that was made `steps[index]` steps before. */
  #slot(index) {
    const size = this.model.levels.length, at = (this.count % this.model.steps[index]) * size;
    return this.pending[index].subarray(at, at + size);
  }

  /** Multiply the distances from the median; quantiles do not cross and respect the bound. */
  #calibrated(raw, factors) {
    const { half, lower } = this, median = raw[half], q = new Float64Array(raw.length);
    const shift = Math.max(lower - median, 0);
    for (const direction of [-1, 1]) {
      let apart = 0;
      for (let i = half + direction; i >= 0 && i < raw.length; i += direction) {
        apart = Math.max(apart, direction * (raw[i] - median) * Math.exp(factors[i]));
        q[i] = median + direction * apart;
      }
    }
    q[half] = median;
    return q.map((x) => Math.max(x + shift, lower));
  }

  #adapt(factors, q, y) {
    const { rate, largestFactor } = this.constants, { levels } = this.model;
    for (let i = 0; i < q.length; i++) {
      if (i === this.half) continue;
      const missed = (y - q[i]) * Math.sign(i - this.half) > 0 ? 1 : 0;
      const after = factors[i] + rate * (missed - Math.min(levels[i], 1 - levels[i]));
      factors[i] = Math.min(Math.max(after, -largestFactor), largestFactor);
    }
  }

  #score(y, [low, median, high]) {
    const { recent: rate, usual, largest, digits, levelRate, weight, warmup } = this.constants;
    const before = this.surprise, values = before.values + 1;
    const side = y > median ? high - median : median - low;
    const surprise = Math.min(Math.abs(y - median) / Math.max(side, 1e-12), largest);
    const recent = before.recent + rate * (surprise - before.recent);
    let apart = (recent - before.mean) / Math.sqrt(Math.max(before.variance, 1e-4));
    const level = before.values ? before.level : y, away = y - level;
    if (values > warmup)
      apart = Math.max(apart, (weight * Math.abs(away)) / Math.sqrt(Math.max(before.spread, 1e-12)));
    const tail = 0.5 * erfc(apart / Math.SQRT2);
    const share = Math.max(usual, 1 / (values + 1)), slow = Math.max(levelRate, 1 / (values + 1));
    const mean = before.mean + share * (recent - before.mean);
    const variance = before.variance + share * ((recent - mean) ** 2 - before.variance);
    const spread = before.spread + slow * (((1 - slow) * away) ** 2 - before.spread);
    this.surprise = { values, recent, mean, variance, level: level + slow * away, spread };
    return Math.min(1, -Math.log10(Math.max(tail, 1e-300)) / digits);
  }
}

/** Complementary error function: its series for small x, and its continued fraction for large x. */
export function erfc(x) {
  if (x < 0) return 2 - erfc(-x);
  const square = x * x;
  if (x < 2.5) {
    let sum = x, term = x;
    for (let n = 1; Math.abs(term) > 1e-17 * sum; n++) {
      term *= (2 * square) / (2 * n + 1);
      sum += term;
    }
    return 1 - (2 / Math.sqrt(Math.PI)) * Math.exp(-square) * sum;
  }
  let fraction = x;
  for (let n = 60; n > 0; n--) fraction = x + n / 2 / fraction;
  return Math.exp(-square) / (Math.sqrt(Math.PI) * fraction);
}
