"use strict";

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

function table(head, rows) {
  const made = element("table", "");
  const top = made.createTHead().insertRow();
  for (const text of head) top.append(element("th", text));
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const text of row) line.insertCell().textContent = text ?? "";
  }
  return made;
}

function operation(path, method, what) {
  const title = element("summary", "");
  const verb = element("span", method.toUpperCase());
  verb.className = "method";
  title.append(verb, element("code", path), ` ${what.summary ?? ""}`);
  const made = element("details", "", title);
  if (what.description) made.append(element("p", what.description));
  const parameters = (what.parameters ?? []).map((one) => [one.name, one.in, one.description]);
  if (parameters.length) made.append(table(["parameter", "in", ""], parameters));
  if (what.requestBody) {
    for (const [form, content] of Object.entries(what.requestBody.content)) {
      made.append(element("p", `Body, ${form}:`), element("pre", JSON.stringify(content.schema, null, 1)));
    }
  }
  const answers = Object.entries(what.responses).map(([status, one]) => [
    status, one.description, Object.keys(one.content ?? {}).join(", "),
  ]);
  made.append(table(["answer", "", "form"], answers));
  return made;
}

async function show() {
  const found = await (await fetch("/openapi.json")).json();
  document.getElementById("about").textContent = found.info.description;
  for (const [path, methods] of Object.entries(found.paths)) {
    for (const [method, what] of Object.entries(methods)) {
      document.getElementById("paths").append(operation(path, method, what));
    }
  }
  for (const [name, schema] of Object.entries(found.components.schemas)) {
    const text = element("pre", JSON.stringify(schema, null, 1));
    document.getElementById("schemas").append(element("details", "", element("summary", name), text));
  }
}

show();
