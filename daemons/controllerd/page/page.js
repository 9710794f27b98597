// The status page: asks for status.json once a second and draws what changed. All text of the cluster
// goes through textContent or attributes, never through markup.
"use strict";

const byId = (id) => document.getElementById(id);
const PERIOD_MS = 1000, SOON_MS = 150, SILENT_MS = 4000, DENSE_FROM = 49, SAMPLES = 90;
const HEALTH = ["unknown", "ok", "degraded", "failed", "missing"];
const state = {doc: null, heardAt: 0, chosen: null, job: null, sort: "rate", turned: false, rates: [],
  seen: 0, nodes: new Map(), order: [], drawnAs: ""};

// ---- text ----

function make(tag, attributes, ...children) {
  const svg = ["svg", "rect", "path"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
function size(bytes) {
  let unit = 0;
  for (; bytes >= 1024 && unit < 5; unit++) bytes /= 1024;
  return (unit && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)) + " " + ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit];
}
function count(value) {
  let unit = 0;
  for (; value >= 10000 && unit < 4; unit++) value /= 1000;
  return unit ? (value < 100 ? value.toFixed(1) : Math.round(value)) + " " + "kMGT"[unit - 1] : String(Math.round(value));
}
function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 100) return s + " s";
  if (s < 6000) return Math.floor(s / 60) + " min";
  return s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " d";
}
const clock = (ms) => new Date(ms).toTimeString().slice(0, 8);
const many = (n, word) => n + " " + word + (n === 1 ? "" : "s");

// ---- drawings ----

function bar(parts, width, height) { // parts: [share of 1, class]
  const svg = make("svg", {class: "thin", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true"});
  svg.append(make("rect", {width, height, rx: 2, class: "c-track"}));
  let x = 0;
  for (const [share, kind] of parts) {
    const wide = Math.min(width - x, share > 0 ? Math.max(share * width, 1.5) : 0);
    if (wide > 0) svg.append(make("rect", {x, width: wide, height, rx: 2, class: kind}));
    x += wide;
  }
  return svg;
}
function spark(values) {
  const top = Math.max(1, ...values), step = 100 / (SAMPLES - 1), from = SAMPLES - values.length;
  const line = values.map((v, i) => `${((from + i) * step).toFixed(2)} ${(25 - 23 * v / top).toFixed(2)}`).join("L");
  const svg = make("svg", {viewBox: "0 0 100 26", preserveAspectRatio: "none", "aria-hidden": "true"});
  if (values.length > 1) svg.append(make("path", {class: "under", d: `M${from * step} 26L${line}L100 26z`}), make("path", {class: "spark", d: "M" + line}));
  return svg;
}

// ---- what a node and a device are ----

const isHeard = (node) => node.health === "ok" || node.health === "degraded" || node.health === "suspect";
function nodeKind(node) {
  if (node.health === "dead") return "bad";
  if (node.health === "unknown" || node.health === "stopped") return "gone";
  return node.health === "ok" && !node.admin ? "" : "warn";
}
const nodeWord = (node) => node.admin && node.health === "ok" ? node.admin : node.health;
function deviceKind(node, device, held) {
  if (device[1] === 3) return "c-bad";
  if (device[1] === 4 || !isHeard(node)) return "c-gone";
  if (device[1] === 2) return "c-warn";
  return device[4] >= 5 ? "c-busy" : held ? "c-held" : "c-idle";
}
function jobsByDevice(doc) {
  const map = new Map();
  for (const job of doc.jobs)
    for (let i = 0; i < job.on.length; i += 2) {
      const id = job.on[i] + ":" + job.on[i + 1];
      const list = map.get(id) || [];
      if (!list.includes(job)) list.push(job);
      map.set(id, list);
    }
  return map;
}

// ---- the last minutes' operators a second ----

function takeRates(doc) {
  state.rates.push(doc.jobs.reduce((sum, job) => sum + Math.max(0, job.rate), 0));
  if (state.rates.length > SAMPLES) state.rates.shift();
}

// ---- summary ----

function tile(title, big, small, drawing) {
  return make("div", {class: "tile"}, make("span", {class: "dim"}, title), make("b", {}, big), make("small", {}, small), drawing);
}
function drawTiles(doc, jobs) {
  const c = doc.cluster, n = c.nodes, t = {used: 0, all: 0, busy: 0, held: 0, devices: 0};
  for (const node of doc.nodes)
    for (const device of node.devices) {
      if (!isHeard(node) || device[1] === 4) continue;
      t.devices++, t.used += device[2], t.all += device[3];
      if (device[4] >= 5) t.busy++;
      else if (jobs.has(node.name + ":" + device[0])) t.held++;
    }
  const parts = [[n.ready, "ready"], [n.suspect, "suspect"], [n.drained, "out of service"], [n.dead, "dead"], [n.unknown, "not back"], [n.stopped, "stopped"]];
  const words = parts.filter(([k]) => k).map(([k, word]) => k + " " + word).join(", ");
  const all = Math.max(1, n.total), errors = doc.jobs.reduce((sum, job) => sum + job.errors, 0);
  const away = doc.jobs.filter((job) => job.state === "away").length;
  byId("tiles").replaceChildren(
    tile("Nodes", String(n.total), words || "none has joined yet", bar([[n.ready / all, "c-ok"], [(n.suspect + n.drained) / all, "c-warn"], [n.dead / all, "c-bad"]], 200, 8)),
    tile("Devices", String(c.devices.total), `${t.busy} busy, ${t.held} held, ${t.devices - t.busy - t.held} idle` + (c.devices.failed ? `, ${c.devices.failed} failed` : "") + (c.devices.missing ? `, ${c.devices.missing} missing` : ""),
      bar([[t.busy / Math.max(1, t.devices), "c-busy"], [t.held / Math.max(1, t.devices), "c-held"]], 200, 8)),
    tile("Device memory", size(t.used * 1048576), "of " + size(t.all * 1048576), bar([[t.used / Math.max(1, t.all), "c-busy"]], 200, 8)),
    tile("Operators a second", count(state.rates[state.rates.length - 1] || 0), "", spark(state.rates)),
    tile("Jobs", String(doc.jobs.length) + (doc.jobs_more ? "+" : ""), `${doc.jobs.length - away} live, ${away} away` + (errors ? ", " + many(errors, "error") : ""), null));
}
function drawHead(doc) {
  const c = doc.cluster, worst = c.trouble || c.journal;
  put(byId("name"), c.name);
  document.title = (doc.alarms.length ? "(" + doc.alarms.length + ") " : "") + c.name + " - DTorch";
  put(byId("about"), `${c.controller}, up ${span(doc.now - c.started)}, epoch ${c.epoch}, ${c.access}, journal ${c.journal ? "failing" : "ok"}, ${c.build}`);
  const pulse = byId("pulse");
  pulse.className = "pill " + (worst ? "bad" : doc.alarms.length ? "warn" : "ok");
  put(pulse, worst || (doc.alarms.length ? many(doc.alarms.length, "warning") : "all is well"));
}
function drawAlarms(doc) {
  const box = byId("alarms"), lines = doc.alarms.slice(0, 8), text = JSON.stringify(lines) + doc.alarms.length;
  if (box.dataset.text === text) return;
  box.dataset.text = text;
  box.hidden = !lines.length;
  box.replaceChildren(...lines.map((a) => make("div", {class: "alarm"}, make("b", {}, a.name), make("span", {}, a.text), make("code", {}, a.command))));
  if (doc.alarms.length > lines.length) box.append(make("p", {class: "dim"}, `and ${doc.alarms.length - lines.length} more: `, make("code", {}, "dtorchctl cluster status")));
}

// ---- the map ----

function wanted(node, word, jobs) {
  if (!word) return true;
  const job = /^job:(\d+)$/.exec(word);
  if (job) return node.devices.some((d) => (jobs.get(node.name + ":" + d[0]) || []).some((j) => String(j.id) === job[1]));
  return [node.name, node.rack || "", node.health, node.admin || "", node.reason || "", node.text || ""].some((text) => text.toLowerCase().includes(word));
}
function drawCells(node, jobs, dense) {
  const n = Math.max(1, node.devices.length), columns = dense ? Math.min(n, 4) : Math.min(n, 16), rows = Math.ceil(n / columns);
  const high = dense ? 9 : n <= 8 ? 30 : 16, svg = make("svg", {viewBox: `0 0 ${columns * 10} ${rows * (high + 1)}`, preserveAspectRatio: "none", height: rows * (high + 1), "aria-hidden": "true"});
  node.devices.forEach((device, i) => {
    const x = i % columns * 10, y = Math.floor(i / columns) * (high + 1), kind = deviceKind(node, device, jobs.has(node.name + ":" + device[0]));
    svg.append(make("rect", {x, y, width: 9.2, height: high, rx: 1, class: kind === "c-busy" ? "c-held" : kind}));
    if (kind === "c-busy") {
      const full = Math.max(2, high * device[4] / 100);
      svg.append(make("rect", {x, y: y + high - full, width: 9.2, height: full, rx: 1, class: kind}));
    }
  });
  return svg;
}
function nodeTitle(node, jobs) {
  const busy = node.devices.filter((d) => d[4] >= 5).length, held = node.devices.filter((d) => jobs.has(node.name + ":" + d[0])).length;
  return `${node.name}, ${nodeWord(node)}, ${many(node.devices.length, "device")}, ${busy} busy, ${held} used by jobs` + (node.rack ? `, rack ${node.rack}` : "");
}
function drawNode(node, jobs, dense) {
  const lit = state.job !== null && node.devices.some((d) => (jobs.get(node.name + ":" + d[0]) || []).some((j) => j.id === state.job));
  const kind = nodeKind(node), uses = node.devices.map((d) => (jobs.get(node.name + ":" + d[0]) || []).length).join();
  const text = JSON.stringify([node, uses, lit, dense]);
  let entry = state.nodes.get(node.name);
  if (!entry) {
    entry = {element: make("div", {role: "option", tabindex: "-1", "aria-selected": "false"}), text: ""};
    entry.element.dataset.name = node.name;
    state.nodes.set(node.name, entry);
  }
  entry.node = node;
  if (entry.text === text) return entry.element;
  entry.text = text;
  entry.element.className = "node " + kind + (lit ? " lit" : "");
  entry.element.setAttribute("aria-label", nodeTitle(node, jobs));
  entry.element.title = nodeTitle(node, jobs);
  entry.element.replaceChildren(make("p", {}, make("span", {}, node.name), make("span", {}, nodeWord(node))), drawCells(node, jobs, dense));
  return entry.element;
}
function drawMap(doc, jobs) {
  const word = byId("find").value.trim().toLowerCase(), map = byId("map");
  const shown = doc.nodes.filter((node) => wanted(node, word, jobs)), dense = shown.length >= DENSE_FROM;
  const racks = new Map();
  for (const node of shown) {
    const rack = node.rack || "";
    if (!racks.has(rack)) racks.set(rack, []);
    racks.get(rack).push(node);
  }
  const names = new Set(doc.nodes.map((node) => node.name));
  for (const name of state.nodes.keys()) if (!names.has(name)) state.nodes.delete(name);
  const elements = shown.map((node) => drawNode(node, jobs, dense));
  state.order = [...racks.values()].flat().map((node) => node.name);
  const as = JSON.stringify([dense, [...racks].map(([rack, nodes]) => [rack, nodes.map((node) => node.name)])]);
  if (state.drawnAs !== as) { // which nodes there are, or their order, is another
    const focused = document.activeElement && map.contains(document.activeElement);
    state.drawnAs = as;
    map.className = dense ? "dense" : "";
    map.replaceChildren();
    for (const [rack, nodes] of racks) {
      const title = rack ? `rack ${rack}, ${many(nodes.length, "node")}` : many(nodes.length, "node") + " without a rack";
      map.append(make("div", {class: "rack", role: "presentation"}, racks.size > 1 || rack ? make("p", {}, title) : null,
        make("div", {class: "group", role: "presentation"}, ...nodes.map((node) => state.nodes.get(node.name).element))));
    }
    if (!elements.length) map.append(make("p", {class: "empty"}, doc.nodes.length ? "No node is like that." : "No node has joined yet. On a machine that should: dtorchctl setup worker"));
    choose(state.chosen && state.order.includes(state.chosen) ? state.chosen : state.order[0] || null, Boolean(focused));
  }
  put(byId("shown"), word ? `${shown.length} of ${many(doc.nodes.length, "node")}` : doc.nodes.length < doc.cluster.nodes.total ? `the first ${doc.nodes.length} nodes` : "");
}
function choose(name, focus) {
  for (const [other, entry] of state.nodes) {
    if (other === name || (entry.element.tabIndex !== 0 && entry.element.getAttribute("aria-selected") !== "true")) continue;
    entry.element.tabIndex = -1;
    entry.element.setAttribute("aria-selected", "false");
  }
  state.chosen = name;
  const entry = state.nodes.get(name);
  if (!entry) return;
  entry.element.tabIndex = 0;
  entry.element.setAttribute("aria-selected", "true");
  if (focus) entry.element.focus();
}
function drawDetail(doc, jobs) {
  const box = byId("detail"), entry = state.nodes.get(state.chosen), node = entry && entry.node;
  const text = node ? entry.text + JSON.stringify(node.devices.map((d) => (jobs.get(node.name + ":" + d[0]) || []).map((j) => [j.id, j.program]))) + span(doc.now - node.since) : "";
  if (box.dataset.text === text && text) return;
  box.dataset.text = text;
  if (!node) {
    box.replaceChildren(make("p", {class: "dim"}, "Choose a node to see its devices."));
    return;
  }
  const kind = nodeKind(node) || "ok";
  box.replaceChildren(make("h3", {}, node.name), make("p", {}, make("span", {class: "word " + (kind === "gone" ? "" : kind)}, nodeWord(node)), ` for ${span(doc.now - node.since)}` + (node.rack ? `, rack ${node.rack}` : "")));
  if (node.text) box.append(make("p", {}, node.text));
  if (node.admin) box.append(make("p", {}, `${node.admin}: ${node.reason || "no reason given"} (${node.by || "?"})`));
  for (const device of node.devices) {
    const users = jobs.get(node.name + ":" + device[0]) || [], model = doc.models[device[6]] || "device";
    const sick = device[1] === 3 || device[1] === 4 || device[1] === 2 ? HEALTH[device[1]] + (device[7] ? ": " + device[7] : "") + ", " : "";
    const drawing = make("svg", {viewBox: "0 0 200 15", preserveAspectRatio: "none", role: "img", "aria-label": `load ${device[4]} percent, memory ${size(device[2] * 1048576)} of ${size(device[3] * 1048576)}`},
      make("rect", {width: 200, height: 8, class: "c-track"}), make("rect", {width: device[4] * 2, height: 8, class: deviceKind(node, device, users.length) === "c-idle" ? "c-held" : deviceKind(node, device, users.length)}),
      make("rect", {y: 10, width: 200, height: 5, class: "c-track"}), make("rect", {y: 10, width: device[3] ? 200 * Math.min(1, device[2] / device[3]) : 0, height: 5, class: "c-held"}));
    box.append(make("div", {class: "dev"}, make("b", {}, ":" + device[0]), drawing,
      make("span", {}, `${sick}${device[4]} %, ${size(device[2] * 1048576)} of ${size(device[3] * 1048576)}` + (device[5] ? `, ${device[5]} °C` : "") + `, ${model}` + (users.length ? "; " + users.map((j) => `job ${j.id} ${j.program}`).join(", ") : ""))));
  }
  box.append(make("p", {}, make("code", {}, "dtorchctl node show " + node.name)));
}
function move(key) {
  const at = state.order.indexOf(state.chosen), element = state.nodes.get(state.chosen).element;
  if (key === "Home") return state.order[0];
  if (key === "End") return state.order[state.order.length - 1];
  if (key === "ArrowRight" || key === "ArrowLeft") return state.order[at + (key === "ArrowRight" ? 1 : -1)];
  let best = null; // the nearest one of the next row
  for (const name of state.order) {
    const other = state.nodes.get(name).element, below = (other.offsetTop - element.offsetTop) * (key === "ArrowDown" ? 1 : -1);
    const far = below * 1e4 + Math.abs(other.offsetLeft - element.offsetLeft);
    if (below > 0 && (!best || far < best.far)) best = {far, name};
  }
  return best && best.name;
}

// ---- tables ----

const COLUMNS = [["id", "ID", (j) => String(j.id)], ["program", "Program", (j) => j.program, "l"], ["state", "State", (j) => j.state === "away" ? "away, " + span(j.grace) + " left" : j.state, "l"],
  ["key", "Key", (j) => j.key, "l"], ["devices", "Devices", (j) => String(j.devices)], ["rate", "Ops/s", (j) => j.rate < 0 ? "–" : count(j.rate)], ["busy", "Device time", (j) => j.busy < 0 ? "–" : j.busy + " %"],
  ["memory", "Memory", (j) => size(j.memory)], ["tensors", "Tensors", (j) => count(j.tensors)], ["queued", "Queued", (j) => size(j.queued)], ["step", "Step", (j) => j.step === undefined ? "" : String(j.step)],
  ["errors", "Errors", (j) => j.errors ? String(j.errors) : ""], ["started", "Age", (j, doc) => span(doc.now - j.started)]];
function drawJobs(doc) {
  const table = byId("jobs"), order = state.turned ? -1 : 1;
  const rows = [...doc.jobs].sort((a, b) => {
    const x = a[state.sort], y = b[state.sort];
    return order * (typeof x === "string" ? x.localeCompare(y) : (y || 0) - (x || 0)) || a.id - b.id;
  });
  if (!table.tHead) {
    table.append(make("thead", {}, make("tr", {}, ...COLUMNS.map(([key, title, , side]) => {
      const button = make("button", {type: "button"}, title);
      button.addEventListener("click", () => { state.turned = state.sort === key && !state.turned, state.sort = key, draw(); });
      return make("th", {class: side || "", scope: "col", "data-key": key}, button);
    }))), make("tbody"));
    for (const type of ["click", "keydown"])
      table.tBodies[0].addEventListener(type, (event) => {
        const row = event.target.closest("tr");
        if (!row || !row.dataset.id || (type === "keydown" && event.key !== "Enter" && event.key !== " ")) return;
        event.preventDefault();
        state.job = state.job === Number(row.dataset.id) ? null : Number(row.dataset.id);
        draw();
      });
  }
  for (const head of table.tHead.rows[0].cells)
    if (head.dataset.key === state.sort) head.setAttribute("aria-sort", state.turned ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  const body = table.tBodies[0];
  rows.forEach((job, i) => {
    const row = body.rows[i] && body.rows[i].cells.length === COLUMNS.length ? body.rows[i] : body.insertBefore(make("tr", {tabindex: "0"}, ...COLUMNS.map(([, , , side]) => make("td", {class: side || ""}))), body.rows[i] || null);
    row.dataset.id = job.id;
    row.className = state.job === job.id ? "lit" : "";
    row.setAttribute("aria-selected", String(state.job === job.id));
    COLUMNS.forEach(([key, , show, side], k) => {
      put(row.cells[k], show(job, doc));
      row.cells[k].className = (side || "") + (key === "errors" && job.errors ? " bad" : key === "state" && job.state === "away" ? " warn" : "");
    });
  });
  while (body.rows.length > rows.length) body.deleteRow(-1);
  if (!rows.length) body.append(make("tr", {}, make("td", {class: "l empty", colspan: COLUMNS.length}, "No job is open.")));
  put(byId("jobs-note"), rows.length ? (doc.jobs_more ? "the first 200; " : "") + "choose one to see its devices in the map" : "");
}
function drawOperators(doc) {
  const table = byId("operators"), text = JSON.stringify(doc.operators);
  if (table.dataset.text === text) return;
  table.dataset.text = text;
  const sum = doc.operators.reduce((all, o) => all + o.device_us, 0) || 1;
  table.replaceChildren(make("thead", {}, make("tr", {}, ...[["Operator", "l"], ["Count"], ["Device time"], ["Bytes"], ["Errors"]].map(([title, side]) => make("th", {class: side || "", scope: "col"}, title)))),
    make("tbody", {}, ...doc.operators.map((o) => make("tr", {}, make("td", {class: "l"}, o.name), make("td", {}, count(o.count)),
      make("td", {}, o.device_us < 1e6 ? (o.device_us / 1000).toFixed(1) + " ms" : (o.device_us / 1e6).toFixed(1) + " s", bar([[o.device_us / sum, "c-busy"]], 110, 9)),
      make("td", {}, size(o.bytes)), make("td", {class: o.errors ? "bad" : ""}, o.errors ? String(o.errors) : "")))));
  if (!doc.operators.length) table.append(make("tbody", {}, make("tr", {}, make("td", {class: "l empty", colspan: 5}, "Nothing was executed yet."))));
  put(byId("operators-note"), doc.operators.length < doc.operator_names ? `the ${doc.operators.length} of ${doc.operator_names} that took most since the start` : "since the start");
}
function drawEvents(doc) {
  const list = byId("events"), first = state.seen === 0;
  for (const event of doc.events) {
    if (event.number <= state.seen) continue;
    state.seen = event.number;
    list.prepend(make("li", {class: event.severity + (first ? "" : " new")}, make("time", {datetime: new Date(event.at).toISOString()}, clock(event.at)),
      make("span", {class: "name", title: event.severity}, event.name), make("span", {}, (event.device || event.node ? (event.device || event.node) + ": " : "") + event.text)));
  }
  while (list.childElementCount > 100) list.lastElementChild.remove();
}

// ---- news ----

function draw() {
  const doc = state.doc;
  if (!doc) return;
  const jobs = jobsByDevice(doc);
  drawHead(doc), drawAlarms(doc), drawTiles(doc, jobs), drawMap(doc, jobs), drawDetail(doc, jobs), drawJobs(doc), drawOperators(doc), drawEvents(doc);
  document.body.dataset.drawn = doc.now;
}
function tellSilence(why) {
  const due = state.doc ? 3 * state.doc.period : 0, silent = performance.now() - state.heardAt > Math.max(SILENT_MS, due), banner = byId("banner");
  document.body.classList.toggle("stale", silent && state.doc !== null);
  banner.hidden = !silent;
  if (silent) put(banner, `${why} Nothing new ${state.doc ? "since " + clock(state.doc.now) : "yet"}; trying again.`);
}
async function look() {
  let pause = PERIOD_MS, why = "";
  try {
    const answer = await fetch("status.json", {signal: AbortSignal.timeout(10000)}), doc = await answer.json();
    if (doc.wait) pause = SOON_MS, why = "The controller does not come to tell its state.";
    else if (!state.doc || doc.now !== state.doc.now) {
      if (state.doc && doc.cluster.started !== state.doc.cluster.started) state.seen = 0, byId("events").replaceChildren();
      takeRates(doc);
      state.doc = doc, state.heardAt = performance.now();
      draw();
    }
  } catch (error) {
    pause = 2 * PERIOD_MS, why = "The controller does not answer.";
  }
  tellSilence(why || "The controller tells nothing new.");
  setTimeout(document.hidden ? sleep : look, pause);
}
function sleep() { // nobody looks: nothing is asked for
  document.addEventListener("visibilitychange", look, {once: true});
}

byId("find").addEventListener("input", draw);
byId("map").addEventListener("click", (event) => {
  const element = event.target.closest(".node");
  if (element) choose(element.dataset.name, true), draw();
});
byId("map").addEventListener("keydown", (event) => {
  if (!["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Home", "End"].includes(event.key) || !state.chosen) return;
  event.preventDefault();
  const name = move(event.key);
  if (name) choose(name, true), draw();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== byId("find")) event.preventDefault(), byId("find").focus();
  if (event.key === "Escape") byId("find").value = "", state.job = null, draw();
});
look();
