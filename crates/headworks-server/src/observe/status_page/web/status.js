"use strict";
// The status page: asks the server once a second while it is visible, and shows what it answers.
//
// Names of exports and tenants come from users of the server: they are only ever set as text. Row layout of a sample, after the export:
// reads, read bytes, writes, write bytes, errors, ns in the device, p50 ns, p99 ns, flushes, their p99 ns, requests of all kinds, then ns of
// each stage.

const SAMPLES_MAX = 600;
const INTERVAL = 1000;
const PATIENCE = 6000;
const SHOWN_MAX = 7;
const OTHERS = "";
const MIB = 1048576;
const [READS, READ_BYTES, WRITES, WRITE_BYTES, ERRORS, DEVICE, P50, P99, FLUSHES, FLUSH_P99, REQUESTS, STAGES] = Array(12).keys();
// Requests are averaged over so many samples for the order of the table, so that rows rarely move.
const CALM = 20;

const byId = (id) => document.getElementById(id);
const state = { next: 0, samples: [], data: null, chosen: null, grouped: false, tenants: new Map(), slots: new Map(), rows: new Map(), devices: new Map(), busy: new Map(), asking: false, timer: 0 };

// Data

async function ask() {
  clearTimeout(state.timer);
  if (state.asking || document.hidden) return;
  state.asking = true;
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), PATIENCE);
  try {
    const answer = await fetch(`/status.json?after=${state.next}`, { signal: abort.signal, cache: "no-store" });
    if (!answer.ok) {
      lost(answer.status === 503 ? "The server is stopping, or one of its threads does not answer" : `The server refuses: ${answer.status}`);
    } else {
      take(await answer.json());
      found();
    }
  } catch (error) {
    lost("No connection to the server");
  } finally {
    clearTimeout(timer);
    state.asking = false;
    state.timer = setTimeout(ask, INTERVAL);
  }
}

function found() {
  const line = byId("connection");
  line.classList.remove("lost");
  if (line.textContent !== "Live") line.textContent = "Live";
  state.since = null;
}

function lost(what) {
  const line = byId("connection");
  state.since = state.since || Date.now() / 1000;
  const text = `${what} since ${format.clock(state.since)}. Trying again.`;
  line.classList.add("lost");
  if (line.textContent !== text) line.textContent = text;
}

function take(data) {
  if (state.data && data.uptime < state.data.uptime) {
    // Another server: its counters began anew, and so does everything here.
    state.samples = [];
    state.busy.clear();
  }
  for (const sample of data.samples) {
    const rows = new Map();
    for (const [name, ...values] of sample.rows) rows.set(name < 0 ? OTHERS : data.names[name], values);
    state.samples.push({ at: sample.at, seconds: sample.seconds, cache: sample.cache, rows });
  }
  state.samples.splice(0, state.samples.length - SAMPLES_MAX);
  state.next = data.next;
  state.data = data;
  const now = Date.now() / 1000;
  if (!state.start || Math.abs(now - data.uptime - state.start) > 2) state.start = now - data.uptime;
  if (state.chosen !== null && !data.exports.some((one) => one.name === state.chosen)) state.chosen = null;
  draw();
}

const requests = (row) => row[REQUESTS];
const bytes = (row) => row[READ_BYTES] + row[WRITE_BYTES];
const stagesOf = (row) => row.slice(STAGES);

const NO_TENANT = "no tenant";

// What several exports did, as one row: counts are added up, percentiles are the worst.
function together(rows) {
  const sum = [];
  for (const row of rows) {
    row.forEach((value, index) => {
      const worst = index === P50 || index === P99 || index === FLUSH_P99;
      sum[index] = worst ? Math.max(sum[index] || 0, value) : (sum[index] || 0) + value;
    });
  }
  return sum;
}

// The rows of a sample by tenant.
function byTenant(rows) {
  const tenants = new Map(state.data.exports.map((one) => [one.name, one.tenant || NO_TENANT]));
  const groups = new Map();
  for (const [name, row] of rows) {
    const tenant = tenants.get(name) || OTHERS;
    groups.set(tenant, [...(groups.get(tenant) || []), row]);
  }
  return new Map([...groups].map(([tenant, of]) => [tenant, together(of)]));
}

// The rows of a sample as charts show them.
function chartRows(sample) {
  if (!state.grouped) return sample.rows;
  sample.tenants = sample.tenants || byTenant(sample.rows);
  return sample.tenants;
}

// The exports that charts show: those with the largest parts of requests, bytes and time in the device; the chosen one in any case.
function shownExports() {
  const sums = new Map();
  const all = [0, 0, 0];
  for (const sample of state.samples) {
    for (const [name, row] of chartRows(sample)) {
      if (name === OTHERS) continue;
      const sum = sums.get(name) || [0, 0, 0];
      [requests(row), bytes(row), row[DEVICE]].forEach((value, index) => {
        sum[index] += value;
        all[index] += value;
      });
      sums.set(name, sum);
    }
  }
  const weight = (sum) => sum.reduce((total, value, index) => total + (all[index] > 0 ? value / all[index] : 0), 0);
  const order = [...sums].map(([name, sum]) => [name, weight(sum)]).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  let names = order.slice(0, SHOWN_MAX).map(([name]) => name);
  if (!state.grouped && state.chosen !== null && sums.has(state.chosen) && !names.includes(state.chosen)) names = [...names.slice(0, SHOWN_MAX - 1), state.chosen];
  // An export keeps its colour while it is shown.
  for (const name of state.slots.keys()) if (!names.includes(name)) state.slots.delete(name);
  for (const name of names) {
    if (state.slots.has(name)) continue;
    const used = new Set(state.slots.values());
    state.slots.set(name, [...Array(SHOWN_MAX).keys()].find((slot) => !used.has(slot)));
  }
  const left = order.length > names.length || state.samples.some((sample) => chartRows(sample).has(OTHERS));
  return { names: [...state.slots.keys()].sort((a, b) => state.slots.get(a) - state.slots.get(b)), left };
}

// Times of the samples, with a gap where the server was not watched.
function timeline() {
  const at = [], of = [];
  let before = null;
  for (const sample of state.samples) {
    if (before !== null && sample.at - sample.seconds > before + 0.5) {
      at.push(state.start + before + 0.01);
      of.push(null);
    }
    at.push(state.start + sample.at);
    of.push(sample);
    before = sample.at;
  }
  return { at, of };
}

// Charts

const figures = byId("charts");
const rate = (value) => format.short(value);
const views = {
  throughput: new Chart(figures, { id: "throughput", title: "Throughput by export", unit: "MiB/s, read and written", show: rate, stacked: true, empty: "Nothing was read or written." }),
  requests: new Chart(figures, { id: "requests", title: "Requests by export", unit: "per second, of all kinds", show: rate, stacked: true, empty: "No request was answered." }),
  latency: new Chart(figures, { id: "latency", title: "Latency by export", unit: "99th percentile of reads and writes, ms", show: rate, logarithmic: true, empty: "Nothing was read or written." }),
  flushes: new Chart(figures, { id: "flushes", title: "Flushes by export", unit: "99th percentile, ms", show: rate, logarithmic: true, empty: "Nothing was flushed." }),
  stages: new Chart(figures, { id: "stages", title: "Where the time goes", unit: "ms per request, by stage", show: rate, stacked: true, empty: "No request had to wait." }),
  device: new Chart(figures, { id: "device", title: "Who uses the devices", unit: "requests in the device, on average", show: rate, stacked: true, empty: "No request was in a device." }),
  dirty: new Chart(figures, { id: "dirty", title: "Dirty data and its limits", unit: "MiB", show: rate, empty: "There is no page cache, so nothing is dirty." }),
};

function drawCharts() {
  const { at, of } = timeline();
  const now = state.start + state.data.uptime;
  const { names, left } = shownExports();
  // One line for each export shown, and one for all others; `combine` adds the others up.
  const lines = (value, combine) => {
    const made = names.map((name) => ({
      name,
      slot: state.slots.get(name),
      values: of.map((sample) => (sample === null ? null : value(chartRows(sample).get(name), sample))),
    }));
    if (left) {
      made.push({
        name: "all others",
        slot: 8,
        values: of.map((sample) => {
          if (sample === null) return null;
          const others = [...chartRows(sample)].filter(([name]) => !state.slots.has(name)).map(([, row]) => value(row, sample));
          const known = others.filter((one) => one !== null);
          return known.length > 0 ? combine(known) : value(undefined, sample);
        }),
      });
    }
    return made.filter((line) => line.values.some((one) => one > 0));
  };
  for (const [view, what] of [["throughput", "Throughput"], ["requests", "Requests"], ["latency", "Latency"], ["flushes", "Flushes"]]) {
    views[view].title.textContent = `${what} by ${state.grouped ? "tenant" : "export"}`;
  }
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const perSecond = (of) => (row, sample) => (row ? of(row) / sample.seconds : 0);
  views.throughput.show(now, at, lines(perSecond((row) => bytes(row) / MIB), sum));
  views.requests.show(now, at, lines(perSecond(requests), sum));
  const longest = (values) => Math.max(...values);
  const latency = lines((row) => (row && row[READS] + row[WRITES] > 0 ? row[P99] / 1e6 : null), longest);
  const flushes = lines((row) => (row && row[FLUSHES] > 0 ? row[FLUSH_P99] / 1e6 : null), longest);
  // A logarithmic axis has no place for the zero of requests that were answered in the turn of their arrival.
  const drawable = (line) => ({ ...line, told: line.values, values: line.values.map((value) => value || null) });
  views.latency.show(now, at, latency.map(drawable));
  views.flushes.show(now, at, flushes.map(drawable));
  views.device.show(now, at, lines(perSecond((row) => row[DEVICE] / 1e9), sum));
  drawStages(now, at, of);
  drawDirty(now, at, of);
}

function drawStages(now, at, of) {
  const chosen = state.chosen;
  views.stages.title.textContent = chosen === null ? "Where the time goes" : `Where the time goes: ${chosen}`;
  const rowsOf = (sample) => (chosen === null ? [...sample.rows.values()] : [sample.rows.get(chosen)].filter((row) => row));
  const perRequest = of.map((sample) => {
    if (sample === null) return null;
    const rows = rowsOf(sample);
    const count = rows.reduce((total, row) => total + requests(row), 0);
    return state.data.stages.map((_, stage) => (count > 0 ? rows.reduce((total, row) => total + row[STAGES + stage], 0) / 1e6 / count : 0));
  });
  const lines = state.data.stages.map((name, stage) => ({ name, slot: stage, values: perRequest.map((values) => (values === null ? null : values[stage])) }));
  views.stages.show(now, at, lines.filter((line) => line.values.some((one) => one > 0)));
}

function drawDirty(now, at, of) {
  const line = (name, slot, key) => ({ name, slot, values: of.map((sample) => (sample === null || !sample.cache ? null : sample.cache[key] / MIB)) });
  const lines = state.data.cache ? [line("dirty", 0, "dirty"), line("write-back begins", 4, "background"), line("limit", 1, "threshold")] : [];
  views.dirty.show(now, at, lines);
}

// Tables

function cell(row, index, text, classes) {
  const found = row.cells[index];
  if (found.textContent !== text) found.textContent = text;
  if (classes !== undefined && found.className !== classes) found.className = classes;
}

// Brings the rows of a table into an order; a focused one keeps the focus.
function arrange(body, rows) {
  const focused = document.activeElement;
  let moved = false;
  rows.forEach((row, index) => {
    if (body.rows[index] !== row) {
      body.insertBefore(row, body.rows[index] || null);
      moved = true;
    }
  });
  while (body.rows.length > rows.length) body.lastElementChild.remove();
  if (moved && focused && body.contains(focused)) focused.focus({ preventScroll: true });
}

function exportRow(name) {
  const button = element("button", { type: "button", "aria-pressed": "false", title: name }, name);
  button.addEventListener("click", () => choose(state.chosen === name ? null : name));
  const row = element("tr", {}, element("th", { scope: "row" }, button, element("span", { class: "tenant" })));
  for (let column = 1; column < 15; column += 1) row.append(element("td"));
  return row;
}

// The age of the oldest request that is not answered; one second is long.
function oldest(row, index, ns) {
  const age = (ns || 0) / 1e9;
  cell(row, index, age < 0.1 ? "-" : age < 100 ? `${age.toFixed(1)} s` : format.time(age), age >= 1 ? "number bad" : "number zero");
}

function calmUse() {
  const use = new Map();
  for (const sample of state.samples.slice(-CALM)) {
    for (const [name, row] of sample.rows) use.set(name, (use.get(name) || 0) + requests(row));
  }
  return use;
}

function drawExports() {
  const { data, samples } = state;
  const last = samples[samples.length - 1];
  const use = calmUse();
  const known = new Set(data.exports.map((one) => one.name));
  for (const name of state.rows.keys()) if (!known.has(name)) state.rows.delete(name);
  const wanted = byId("filter").value.trim().toLowerCase();
  const fits = (one) => wanted === "" || one.name.toLowerCase().includes(wanted) || (one.tenant || "").toLowerCase().includes(wanted);
  const order = data.exports.filter(fits).sort((a, b) => (use.get(b.name) || 0) - (use.get(a.name) || 0) || (a.name < b.name ? -1 : 1));
  const rows = order.map((one) => {
    if (!state.rows.has(one.name)) state.rows.set(one.name, exportRow(one.name));
    const row = state.rows.get(one.name);
    const did = last && last.rows.get(one.name);
    const seconds = last ? last.seconds : 1;
    const stages = did ? stagesOf(did) : [];
    const most = Math.max(0, ...stages);
    const number = (index, value) => cell(row, index, format.short(value), value > 0 ? "number" : "number zero");
    const tenant = one.tenant ? ` of ${one.tenant}` : "";
    const label = row.cells[0].lastElementChild;
    if (label.textContent !== tenant) label.textContent = tenant;
    cell(row, 1, one.state, one.state === "serving" ? "" : "bad");
    number(2, did ? did[READS] / seconds : 0);
    number(3, did ? did[WRITES] / seconds : 0);
    number(4, did ? did[FLUSHES] / seconds : 0);
    number(5, did ? bytes(did) / MIB / seconds : 0);
    const latency = (index, ns, count) => cell(row, index, format.latency(ns, count), count > 0 ? "number" : "number zero");
    const asked = did ? did[READS] + did[WRITES] : 0;
    latency(6, did ? did[P50] : 0, asked);
    latency(7, did ? did[P99] : 0, asked);
    latency(8, did ? did[FLUSH_P99] : 0, did ? did[FLUSHES] : 0);
    cell(row, 9, most > 0 ? data.stages[stages.indexOf(most)] : "-");
    number(10, did ? did[DEVICE] / 1e9 / seconds : 0);
    number(11, one.dirty / MIB);
    cell(row, 12, format.count(one.errors), one.errors > 0 ? "number bad" : "number zero");
    cell(row, 13, format.count(one.clients), one.clients > 0 ? "number" : "number zero");
    oldest(row, 14, one.oldest_ns);
    const chosen = one.name === state.chosen;
    row.className = chosen ? "chosen" : "";
    row.cells[0].firstElementChild.setAttribute("aria-pressed", String(chosen));
    return row;
  });
  arrange(byId("export-table").tBodies[0], rows);
  byId("filter-label").hidden = data.exports_all <= 12;
  const left = data.exports_all - data.exports.length;
  const note = left > 0 ? `The ${data.exports.length} used most of ${data.exports_all}; ${left} are not listed.` : "Choose one to see where its time goes.";
  if (byId("exports-note").textContent !== note) byId("exports-note").textContent = note;
}

function tenantRow(name) {
  const row = element("tr", {}, element("th", { scope: "row", title: name }, name));
  for (let column = 1; column < 12; column += 1) row.append(element("td"));
  for (const index of [1, 2]) row.cells[index].append(element("meter", { min: "0", max: "1", "aria-hidden": "true" }), element("span", {}));
  return row;
}

// A part as a bar, and in words.
function part(cell, value, text) {
  const [bar, words] = cell.children;
  if (bar.value !== value) bar.value = value;
  if (words.textContent !== text) words.textContent = text;
}

function drawTenants() {
  const { data, samples } = state;
  byId("tenants").hidden = data.tenants.length === 0;
  const last = samples[samples.length - 1];
  const seconds = last ? last.seconds : 1;
  const did = last ? byTenant(last.rows) : new Map();
  const used = [...did.values()].reduce((sum, row) => sum + row[DEVICE], 0);
  const weights = data.tenants.reduce((sum, one) => sum + one.weight, 0);
  const rows = data.tenants.map((one) => {
    if (!state.tenants.has(one.name)) state.tenants.set(one.name, tenantRow(one.name));
    const row = state.tenants.get(one.name);
    const own = data.exports.filter((found) => found.tenant === one.name);
    const sum = (of) => own.reduce((total, found) => total + of(found), 0);
    const now = did.get(one.name);
    const stages = now ? stagesOf(now) : [];
    const most = Math.max(0, ...stages);
    const number = (index, value, text, bad) => cell(row, index, text, value > 0 ? `number${bad ? " bad" : ""}` : "number zero");
    const held = now && used > 0 ? now[DEVICE] / used : 0;
    part(row.cells[1], one.weight / weights, `${one.weight}`);
    part(row.cells[2], held, `${Math.round(held * 100)} %`);
    const rates = now ? [requests(now), bytes(now) / MIB].map((value) => value / seconds) : [0, 0];
    rates.forEach((value, index) => number(3 + index, value, format.short(value)));
    const asked = now ? now[READS] + now[WRITES] : 0;
    number(5, asked, format.latency(now ? now[P99] : 0, asked));
    cell(row, 6, most > 0 ? data.stages[stages.indexOf(most)] : "-");
    const target = one.target_us ? `target ${format.ms(one.target_us * 1e3)} ms` : "";
    cell(row, 7, [one.limits, target].filter((text) => text).join(", ") || "-");
    number(8, sum((found) => found.dirty), format.short(sum((found) => found.dirty) / MIB));
    number(9, sum((found) => found.errors), format.count(sum((found) => found.errors)), true);
    number(10, sum((found) => found.clients), format.count(sum((found) => found.clients)));
    oldest(row, 11, Math.max(0, ...own.map((found) => found.oldest_ns || 0)));
    return row;
  });
  arrange(byId("tenant-table").tBodies[0], rows);
  for (const name of state.tenants.keys()) if (!data.tenants.some((one) => one.name === name)) state.tenants.delete(name);
}

function drawDetail() {
  const one = state.data.exports.find((found) => found.name === state.chosen);
  byId("detail").hidden = !one;
  if (!one) return;
  byId("detail-title").textContent = `${one.name}: since the start`;
  const facts = [
    ["reads", "Reads", format.count(one.reads)],
    ["read_bytes", "Read", format.size(one.read_bytes)],
    ["writes", "Writes", format.count(one.writes)],
    ["write_bytes", "Written", format.size(one.write_bytes)],
    ["flushes", "Flushes", format.count(one.flushes)],
    ["others", "Trims, zeroes and others", format.count(one.others)],
    ["errors", "Errors", format.count(one.errors)],
    ["p50", "Median", `${format.ms(one.p50_ns)} ms`],
    ["p99", "99th percentile", `${format.ms(one.p99_ns)} ms`],
    ["flush_p99", "99th percentile of flushes", `${format.ms(one.flush_p99_ns)} ms`],
    ["size", "Size", format.size(one.size)],
    ["cached", "In the cache", format.size(one.cached)],
    ["dirty", "Dirty", format.size(one.dirty)],
    ["held", "Could not be written", format.size(one.held)],
    ["device", "Device", one.device || "-"],
  ];
  const list = byId("detail").querySelector("dl");
  if (list.children.length === 0) {
    for (const [key, label] of facts) list.append(element("div", {}, element("dt", {}, label), element("dd", { "data-key": key })));
  }
  facts.forEach(([, , text], index) => {
    const shown = list.children[index].lastElementChild;
    if (shown.textContent !== text) shown.textContent = text;
  });
}

function drawDevices() {
  const { data } = state;
  const users = new Map();
  for (const one of data.exports) {
    if (one.device) users.set(one.device, [...(users.get(one.device) || []), one.name]);
  }
  const rows = data.devices.map((device) => {
    const { name } = device;
    if (!state.devices.has(name)) {
      const row = element("tr", {}, element("th", { scope: "row" }, name));
      for (let column = 1; column < 8; column += 1) row.append(element("td"));
      state.devices.set(name, row);
    }
    const row = state.devices.get(name);
    const before = state.busy.get(name);
    let part = before ? before.part : 0;
    if (!before || data.uptime > before.uptime) {
      if (before) part = Math.min(1, Math.max(0, (device.busy_ns - before.ns) / 1e9 / (data.uptime - before.uptime)));
      state.busy.set(name, { ns: device.busy_ns, uptime: data.uptime, part });
    }
    const names = users.get(name) || [];
    const more = names.length > 3 ? ` and ${names.length - 3} more` : "";
    cell(row, 1, device.state === "live" ? "answers" : "does not answer", device.state === "live" ? "" : "bad");
    cell(row, 2, device.scheduler);
    cell(row, 3, `${Math.round(part * 100)} %`, part > 0 ? "number" : "number zero");
    cell(row, 4, format.count(device.requests), device.requests > 0 ? "number" : "number zero");
    cell(row, 5, `${device.tags_used} of ${device.tags}`, device.tags_used > 0 ? "number" : "number zero");
    cell(row, 6, names.slice(0, 3).join(", ") + more || "-");
    oldest(row, 7, device.oldest_ns);
    return row;
  });
  arrange(byId("device-table").tBodies[0], rows);
  for (const name of state.devices.keys()) {
    if (!data.devices.some((device) => device.name === name)) {
      state.devices.delete(name);
      state.busy.delete(name);
    }
  }
}

function drawServer() {
  const { data } = state;
  const words = [`version ${data.version}`, `${data.exports_all} exports`, `${data.clients} clients`, `up ${format.time(data.uptime)}`];
  if (data.cache) {
    words.push(`cache ${format.size(data.cache.resident)} of ${format.size(data.cache.limit)}`);
    words.push(`dirty ${format.size(data.cache.dirty)} of ${format.size(data.cache.threshold)}`);
  }
  byId("server").textContent = words.join(", ");
  const { worst } = data;
  const sentences = worst ? worst.sentences : ["Nothing was slow in the last 10 seconds."];
  const text = byId("worst-text");
  if ([...text.children].map((line) => line.textContent).join("\n") !== sentences.join("\n")) {
    text.replaceChildren(...sentences.map((sentence) => element("p", {}, sentence)));
  }
  byId("worst").classList.toggle("slow", Boolean(worst));
}

function draw() {
  drawServer();
  drawExports();
  drawDetail();
  drawTenants();
  drawDevices();
  drawCharts();
}

function choose(name) {
  state.chosen = name;
  if (state.data) draw();
}

byId("all").addEventListener("click", () => {
  const name = state.chosen;
  choose(null);
  const row = state.rows.get(name);
  if (row && row.isConnected) row.cells[0].firstElementChild.focus();
});
byId("grouped").addEventListener("change", () => {
  state.grouped = byId("grouped").checked;
  state.slots.clear();
  if (state.data) draw();
});
byId("filter").addEventListener("input", () => state.data && drawExports());
document.addEventListener("visibilitychange", () => ask());
ask();
