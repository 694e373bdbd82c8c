"use strict";

// Shows what /events sends: "full" once with the curves, then "view" for each reading, "end" at last.

const MAX_POINTS = 1440;
const GOOD_STATES = ["running", "done"];
const CHARTS = [
  ["Examples per second", [{name: "examples_per_s", label: "all workers"}], formatNumber],
  ["Loss", [{name: "loss", label: "training"}], formatNumber],
  ["AUC", [{name: "auc", label: "training"}, {name: "validation_auc", label: "validation"}], formatNumber],
  ["Pull latency", [{name: "pull_p50_s", label: "median"}, {name: "pull_p99_s", label: "99 %"}], formatSeconds],
  ["Push latency", [{name: "push_p50_s", label: "median"}, {name: "push_p99_s", label: "99 %"}], formatSeconds],
  ["Staleness and queue", [{name: "staleness", label: "steps behind"}, {name: "queue", label: "queued"}], formatNumber],
];

const byId = (id) => document.getElementById(id);
let charts = [], history = null, heard = Date.now();

function formatBytes(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 2 ** 30) return (value / 2 ** 30).toFixed(1) + " GiB";
  return (value / 2 ** 20).toFixed(value < 10 * 2 ** 20 ? 1 : 0) + " MiB";
}

function formatShare(value) {
  return value === null || value === undefined ? "–" : (100 * value).toFixed(value < 0.1 ? 1 : 0) + " %";
}

function formatAge(seconds) {
  if (seconds < 90) return seconds.toFixed(0) + " s";
  if (seconds < 5400) return (seconds / 60).toFixed(0) + " min";
  return (seconds / 3600).toFixed(1) + " h";
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;  // so that readers are not repeated
}

function fillRows(body, rows) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, r) => {
    const row = body.rows[r] || body.insertRow();
    cells.forEach((cell, c) => {
      let element = row.cells[c];
      if (!element) {
        element = document.createElement(c === 0 ? "th" : "td");
        if (c === 0) element.scope = "row";
        row.append(element);
      }
      setText(element, cell.text);
      element.className = cell.kind || "";
    });
  });
}

function showFleet(processes) {
  fillRows(byId("fleet").tBodies[0], processes.map((p) => [
    {text: p.name},
    {text: p.state, kind: GOOD_STATES.includes(p.state) ? "good" : "bad"},
    {text: p.doing || "", kind: p.doing && p.doing.startsWith("waiting") ? "doing warn" : "doing"},
    {text: p.rate === undefined ? "–" : `${formatNumber(p.rate)} ${p.rate_unit}`, kind: "number"},
    {text: p.cpu === undefined ? "–" : formatShare(p.cpu), kind: "number"},
    {text: formatBytes(p.memory_bytes), kind: "number"},
    {text: String(p.starts), kind: p.starts > 1 ? "number warn" : "number"},
    {text: p.pid ? String(p.pid) : "–", kind: "number"},
  ]));
}

function showTables(tables) {
  const number = (text) => ({text, kind: "number"});
  fillRows(byId("tables").tBodies[0], tables.map((t) => [
    {text: t.name}, number(formatNumber(t.rows)), number(formatBytes(t.bytes)),
    number(formatNumber(t.created_per_s)), number(formatNumber(t.evicted_per_s)),
    number(formatShare(t.new_share)), number(formatShare(t.unique)), number(formatShare(t.hot)),
    number(formatNumber(t.row_norm)), number(formatNumber(t.gradient_norm)),
    number(t.skew === null ? "–" : t.skew.toFixed(2)),
    {text: formatNumber(t.rejected), kind: t.rejected > 0 ? "number bad" : "number"},
  ]));
}

function showFindings(findings) {
  const list = byId("findings");
  const wanted = findings.map((f) => `${f.rule} ${f.subject}`);
  for (const item of [...list.children]) {
    if (!wanted.includes(item.dataset.key)) item.remove();
  }
  findings.forEach((finding, i) => {
    let item = [...list.children].find((each) => each.dataset.key === wanted[i]);
    if (!item) {
      item = document.createElement("li");
      item.dataset.key = wanted[i];
      item.dataset.rule = finding.rule;
      item.append(document.createElement("strong"), document.createElement("span"));
      item.lastChild.className = "advice";
      list.append(item);
    }
    setText(item.firstChild, finding.text);
    setText(item.lastChild, `What to do: ${finding.advice}.`);
  });
  if (findings.length === 0) {
    const item = document.createElement("li");
    item.className = "none";
    item.textContent = "None.";
    list.append(item);
  }
}

function showNow(view) {
  const totals = view.totals;
  const tiles = [
    ["examples/s", formatNumber(totals.examples_per_s)],
    ["loss", formatNumber(totals.loss)],
    ["AUC", formatNumber(totals.auc)],
    ["epoch", view.epoch ? `${view.epoch.now} of ${view.epoch.of}` : "–"],
    ["pull, median", formatSeconds(totals.pull_p50_s)],
    ["push, median", formatSeconds(totals.push_p50_s)],
    ["staleness", formatNumber(totals.staleness)],
    ["rows", formatNumber(totals.rows)],
  ];
  const now = byId("now");
  tiles.forEach(([name, value], i) => {
    let tile = now.children[i];
    if (!tile) {
      tile = document.createElement("div");
      tile.append(document.createElement("dt"), document.createElement("dd"));
      now.append(tile);
    }
    setText(tile.firstChild, name);
    setText(tile.lastChild, value);
  });
}

function showBottleneck(bottleneck) {
  setText(byId("bottleneck"), bottleneck ? `Bottleneck: ${bottleneck.text}.` : "No steps lately.");
  const shares = bottleneck ? Object.entries(bottleneck.shares) : [];
  const bar = svgElement("svg", {viewBox: "0 0 100 10", preserveAspectRatio: "none"});
  let x = 0;
  shares.forEach(([name, share], i) => {
    const part = svgElement("rect", {class: `f${i}`, x: 100 * x, y: 0, width: 100 * share, height: 10});
    const title = svgElement("title", {});
    title.textContent = `${name} ${formatShare(share)}`;
    part.append(title);
    bar.append(part);
    x += share;
  });
  const words = shares.map(([name, share]) => `${name} ${formatShare(share)}`);
  const place = byId("shares");
  place.setAttribute("aria-label", `Where the time goes: ${words.join(", ") || "unknown"}`);
  place.replaceChildren(bar);
  let legend = byId("legend");
  if (!legend) {
    legend = document.createElement("p");
    legend.id = "legend";
    legend.setAttribute("aria-hidden", "true");
    place.after(legend);
  }
  legend.replaceChildren(...shares.map(([name, share], i) => {
    const word = document.createElement("span");
    word.className = `f${i}`;
    word.textContent = `■ ${name} ${formatShare(share)}`;
    return word;
  }));
}

function showCheckpoint(saved) {
  if (!saved) return setText(byId("checkpoint"), "None yet.");
  const failures = saved.failures ? `; ${saved.failures} failed` : "";
  setText(byId("checkpoint"), `${saved.count} committed${failures}; the last at step ${saved.step}, ` +
    `${formatAge(saved.age_s)} ago, written in ${formatSeconds(saved.seconds)}.`);
}

function showNotes(notes) {
  const list = byId("notes");
  if (list.children.length === notes.length) return;
  list.replaceChildren(...[...notes].reverse().map((note) => {
    const item = document.createElement("li");
    const when = document.createElement("time");
    when.textContent = formatClock(note.time);
    item.append(when, note.text);
    return item;
  }));
}

function showState(text, isBad) {
  setText(byId("state"), text);
  byId("state").className = isBad ? "bad" : "";
}

function show(view) {
  heard = Date.now();
  if (!view.job) return;
  setText(byId("script"), view.job.script);
  const bad = view.processes.filter((p) => !GOOD_STATES.includes(p.state));
  const words = bad.map((p) => `${p.name}: ${p.state}`).join(", ");
  const since = view.job.begun ? ` for ${formatAge(view.time - view.job.begun)}` : "";
  if (view.job.ended) showState(view.job.ended, true);
  else showState(words ? `Running${since}. ${words}` : `Running${since}, all ${view.processes.length} processes healthy`,
    bad.length > 0);
  document.title = (bad.length || view.findings.length ? "⚠ " : "") + `sparsefleet ${view.job.script}`;
  showFindings(view.findings);
  showNow(view);
  showBottleneck(view.bottleneck);
  showFleet(view.processes);
  showTables(view.tables);
  showCheckpoint(view.checkpoint);
  showNotes(view.notes);
}

function addPoint(view) {
  if (!history) return;
  history.time.push(view.time);
  for (const [, curves] of CHARTS) {
    for (const curve of curves) {
      const known = history[curve.name] = history[curve.name] || [];
      while (known.length < history.time.length - 1) known.push(null);
      const value = view.totals[curve.name];
      known.push(value === undefined ? null : value);
    }
  }
  if (history.time.length > MAX_POINTS) {
    for (const name of Object.keys(history)) history[name] = history[name].filter((_, i) => i % 2 === 0);
  }
  charts.forEach((chart) => chart.update(history));
}

function connect() {
  const source = new EventSource("/events");
  source.addEventListener("full", (event) => {
    const job = JSON.parse(event.data);
    history = job.history || {time: []};
    charts.forEach((chart) => chart.update(history));
    show(job);
  });
  source.addEventListener("view", (event) => {
    const view = JSON.parse(event.data);
    addPoint(view);
    show(view);
  });
  source.addEventListener("end", (event) => {
    source.close();
    showState(JSON.parse(event.data).text, true);
  });
  source.onerror = () => showState("No connection to the launcher: the job has ended, or the machine is gone", true);
}

charts = CHARTS.map(([title, curves, format]) => new Chart(byId("charts"), title, curves, format));
connect();
