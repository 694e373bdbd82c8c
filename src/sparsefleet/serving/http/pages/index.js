"use strict";

const FORMS = {
  json: "application/json",
  jsonl: "application/x-ndjson",
  csv: "text/csv",
  arrow: "application/vnd.apache.arrow.stream",
  arrows: "application/vnd.apache.arrow.stream",
};
const at = (id) => document.getElementById(id);

function headers(more) {
  const token = at("token").value.trim();
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

function addRow(body, cells) {
  const row = body.insertRow();
  for (const cell of cells) row.insertCell().textContent = cell;
}

function clear(table) {
  for (const part of [...table.tHead.rows, ...table.tBodies[0].rows]) {
    if (table.id === "scores" || part.parentNode === table.tBodies[0]) part.remove();
  }
}

function say(text, isError) {
  at("message").textContent = text;
  at("message").className = isError ? "error" : "";
}

async function answerOf(response) {
  const content = await response.json();
  if (!response.ok) throw new Error(`${response.status} ${content.error.name}: ${content.error.message}`);
  return content;
}

async function showModel() {
  try {
    const model = await answerOf(await fetch("/v1/model", { headers: headers({}) }));
    at("model").textContent = `${model.name}, version ${model.version}, by ${model.settings.engine}`;
    clear(at("inputs"));
    for (const input of model.schema.inputs) {
      const sizes = input.shape.slice(1).join(" × ");
      const one = sizes ? `a list of ${sizes}` : "1 value";
      const hashed = (model.schema.hashed ?? []).some((item) => item.input === input.name);
      const kind = hashed ? `string or ${input.dtype}` : input.dtype;
      addRow(at("inputs").tBodies[0], [input.name, kind, input.offsets ? "a list of any length" : one]);
    }
    if (!at("examples").value) {
      at("examples").value = model.golden.join("\n");
    }
  } catch (error) {
    at("model").textContent = String(error.message);
  }
}

// The text goes as it was typed: JavaScript would round ids of more than 53 bits.
function request() {
  const file = at("file").files[0];
  if (file) return [FORMS[file.name.split(".").pop().toLowerCase()] ?? "application/octet-stream", file];
  const text = at("examples").value.trim();
  return [/^\{\s*"examples"\s*:/.test(text) ? FORMS.json : FORMS.jsonl, text];
}

function show(found) {
  const names = Object.keys(found.predictions);
  const scores = at("scores");
  addRow(scores.tHead, ["example", ...names]);
  const count = found.predictions[names[0]].length;
  for (let i = 0; i < count; i++) {
    addRow(scores.tBodies[0], [i, ...names.map((name) => JSON.stringify(found.predictions[name][i]))]);
  }
  at("none").hidden = found.unknown.length > 0;
  for (const id of found.unknown) {
    const examples = id.examples === null ? "" : id.examples.join(", ");
    addRow(at("unknown").tBodies[0], [id.table, id.key, id.input ?? "computed by the model", examples]);
  }
  say(`${count} ${count === 1 ? "example" : "examples"}, version ${found.version}`, false);
}

async function predict() {
  clear(at("scores"));
  clear(at("unknown"));
  at("none").hidden = true;
  at("predict").disabled = true;
  say("…", false);
  try {
    const [type, body] = request();
    const options = { method: "POST", headers: headers({ "Content-Type": type, Accept: "application/json" }), body };
    show(await answerOf(await fetch("/v1/predict?unknown=true", options)));
  } catch (error) {
    say(String(error.message), true);
  } finally {
    at("predict").disabled = false;
  }
}

at("predict").addEventListener("click", predict);
at("token").addEventListener("change", showModel);
at("examples").addEventListener("input", () => { at("file").value = ""; });
showModel();
