// Run the exported step of a forecaster with onnxruntime, row by row, outside the page's thread.
//
// Messages in: {type: "load"}, {type: "start", values, seasons, lower}, {type: "run", count}.
// Messages out: {type: "ready"}, {type: "started", …}, {type: "rows", …}, {type: "failed", message}.

import * as ort from "../../packages/onnxruntime/ort.wasm.min.mjs";
import { Judge } from "./judge.js";

const PACKAGE = new URL("../../packages/onnxruntime/", import.meta.url);
const MODELS = new URL("../../models/", import.meta.url);
const ARRAYS = { float64: Float64Array, float32: Float32Array, int64: BigInt64Array };

/** Content of models.json, the shared weights, and each graph by its file name. */
let index, weights, graphs;
/** The stream: a session with its state, and the rows that are left. */
let stream = null;

/** Fetch everything, so that no request is needed later. */
async function load() {
  ort.env.wasm.wasmPaths = PACKAGE.href;
  ort.env.wasm.numThreads = 1; // more need headers that static hosts do not send
  ort.env.logLevel = "error";
  index = await (await request("models.json")).json();
  const files = [index.weights, ...index.models.map((model) => model.file)];
  const contents = await Promise.all(files.map(async (file) => (await request(file)).arrayBuffer()));
  [weights] = contents;
  graphs = new Map(files.map((file, i) => [file, contents[i]]));
  const { session } = await open(index.models[0]); // compiles the runtime
  await session.release();
}

async function request(file) {
  const answer = await fetch(new URL(file, MODELS));
  if (!answer.ok) throw new Error(`${file} could not be loaded: ${answer.status} ${answer.statusText}`);
  return answer;
}

async function open(model) {
  const externalData = [{ path: index.weights, data: new Uint8Array(weights) }];
  const session = await ort.InferenceSession.create(new Uint8Array(graphs.get(model.file)), { externalData });
  const state = {};
  for (const { name, dtype, shape, start } of model.state) {
    const data = new ARRAYS[dtype](shape.reduce((a, b) => a * b, 1));
    data.fill(start === "inf" ? Infinity : dtype === "int64" ? BigInt(start) : start);
    state[name] = new ort.Tensor(dtype, data, shape);
  }
  return { session, state };
}

/** Return the model for these seasons, or else for the shortest of them, or for none. */
function choose(seasons) {
  const find = (lengths) => index.models.find((model) => String(model.seasons) === String(lengths));
  return find(seasons) ?? find(seasons.slice(0, 1)) ?? find([]) ?? index.models[0];
}

async function start({ values, seasons, lower }) {
  if (stream) await stream.session.release();
  const model = choose(seasons);
  const { session, state } = await open(model);
  const judge = new Judge(model, index.constants, lower);
  stream = { model, session, state, judge, values, next: 0 };
  const { horizon, levels } = model;
  return { horizon, levels, seasons: model.seasons, bytes: bytes() };
}

/** Size of the state in bytes. */
const bytes = () =>
  Object.values(stream.state).reduce((sum, tensor) => sum + tensor.data.byteLength, stream.judge.bytes);

/** Read up to `count` rows; return their forecasts one step before, their scores and the last fan. */
async function run({ count }) {
  const { model, session, judge, values } = stream, first = stream.next;
  const rows = Math.min(count, values.length - first);
  const edges = new Float32Array(3 * rows), scores = new Float32Array(rows);
  const constant = {
    lower: new ort.Tensor("float64", [-Infinity], [1]), // the judge applies the bound
    choice: new ort.Tensor("int64", [0n], [1]),
  };
  let fan = null;
  const began = performance.now();
  for (let i = 0; i < rows; i++) {
    const y = values[first + i];
    const seen = judge.see(y);
    edges.set(seen.edges, 3 * i);
    scores[i] = seen.score;
    const out = await session.run({ y: new ort.Tensor("float64", [y], [1]), ...constant, ...stream.state });
    for (const { name } of model.state) stream.state[name] = out[`next.${name}`];
    fan = judge.forecast(out.quantiles.data);
  }
  stream.next += rows;
  const elapsed = performance.now() - began;
  return { first, rows, edges, scores, fan, elapsed, bytes: bytes(), done: stream.next === values.length };
}

const tasks = { load: [load, "ready"], start: [start, "started"], run: [run, "rows"] };
let queue = Promise.resolve(); // one message after the other
addEventListener("message", ({ data }) => {
  const [task, reply] = tasks[data.type];
  queue = queue
    .then(() => task(data))
    .then((result) => postMessage({ type: reply, ...result }))
    .catch((error) => postMessage({ type: "failed", message: error.message ?? String(error) }));
});
