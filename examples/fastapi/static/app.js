"use strict";

const form = document.querySelector("#form");
const list = document.querySelector("#list");
const message = document.querySelector("#message");
const token = document.querySelector("meta[name=csrf-token]").content;
let edited = null;

async function call(method, path, body) {
  const headers = { "X-CSRF-Token": token, "Content-Type": "application/json" };
  const answer = await fetch(`/api/${path}`, {
    method, headers, body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.status === 401) location.reload();
  // A proxy or a failed server may answer with another format.
  const data = await answer.json().catch(() => null);
  if (!answer.ok) throw { errors: data?.errors || { form: "The server failed. Try again." } };
  return data;
}

// Text only: a name or a text of a user is never parsed as HTML.
function element(tag, text = "", properties = {}) {
  return Object.assign(document.createElement(tag), { textContent: text }, properties);
}

function rule() {
  const kind = form.rule.value;
  if (kind === "every") return { kind, minutes: Number(form.minutes.value) };
  if (kind === "once") return { kind, at: form.instant.value };
  if (kind === "cron") return { kind, text: form.cron.value };
  return { kind, at: form.at.value, day: Number(form.day.value) || 1 };
}

// Runs an action outside the form, and shows its error above the list.
async function reporting(run) {
  try {
    await run();
  } catch (error) {
    message.textContent = Object.values(error.errors || { form: String(error) }).join(" ");
  }
}

function showErrors(errors = {}) {
  for (const shown of form.querySelectorAll("[data-field]")) {
    shown.textContent = errors[shown.dataset.field] || "";
    const input = form[shown.dataset.field];
    if (input && input.setAttribute) input.setAttribute("aria-invalid", String(!!shown.textContent));
  }
}

const local = (instant, zone) => new Intl.DateTimeFormat(undefined, {
  dateStyle: "full", timeStyle: "medium", timeZone: zone,
}).format(new Date(instant));

let asked = 0;
async function preview() {
  const number = ++asked;
  const shown = document.querySelector("#preview");
  try {
    const found = await call("POST", "preview", { name: form.elements.name.value, rule: rule() });
    if (number !== asked) return;
    const times = element("ol");
    for (const each of found.fire_times) {
      const note = each.note ? ` (${each.note})` : "";
      times.append(element("li", local(each.fire_at, found.timezone) + note));
    }
    const warnings = found.warnings.map((each) => element("p", each.message, { className: "hint" }));
    shown.replaceChildren(element("strong", found.description), times, ...warnings);
    form.querySelector("[data-field=rule]").textContent = "";
  } catch (error) {
    if (number !== asked) return;
    shown.replaceChildren();
    form.querySelector("[data-field=rule]").textContent = error.errors?.rule || error.errors?.form || "";
  }
}

let waiting;
function previewSoon() {
  clearTimeout(waiting);
  waiting = setTimeout(preview, 200);
}

function showFields() {
  for (const each of form.querySelectorAll("[data-rules]")) {
    each.hidden = !each.dataset.rules.split(" ").includes(form.rule.value);
  }
}

function action(label, name, run) {
  const button = element("button", label, { type: "button" });
  button.setAttribute("aria-label", `${label} ${name}`);
  button.addEventListener("click", async () => {
    button.disabled = true;
    await reporting(run);
    button.disabled = false;
  });
  return button;
}

function edit(item) {
  edited = item.name;
  document.querySelector("#form-title").textContent = `Change ${item.name}`;
  document.querySelector("#save").textContent = "Save";
  document.querySelector("#cancel").hidden = false;
  form.elements.name.value = item.name;
  form.elements.name.readOnly = true;
  form.kind.value = item.kind || "reminder";
  form.text.value = item.text;
  form.rule.focus();
  preview();
}

function endEdit() {
  edited = null;
  form.reset();
  form.elements.name.readOnly = false;
  document.querySelector("#form-title").textContent = "New";
  document.querySelector("#save").textContent = "Create";
  document.querySelector("#cancel").hidden = true;
  showErrors();
  showFields();
  preview();
}

async function showHistory(name, place) {
  const runs = await call("GET", `reminders/${encodeURIComponent(name)}/history`);
  const rows = runs.map((run) => {
    const row = element("li", `${local(run.fire_at, zone())}: ${run.status}`);
    row.className = `status-${run.status}`;
    if (run.error) row.append(element("span", ` ${run.error}`, { className: "error" }));
    return row;
  });
  const shown = rows.length ? rows : [element("li", "No run yet.")];
  place.replaceChildren(...shown);
  place.hidden = false;
}

const zone = () => document.querySelector("#timezone").value;

function card(item) {
  const path = `reminders/${encodeURIComponent(item.name)}`;
  const shown = element("li", "", { className: "card" });
  const title = element("h3", item.name);
  title.append(" ", element("span", item.state, { className: `badge ${item.state}` }));
  const history = element("ol", "", { hidden: true, className: "history" });
  const change = (what) => async () => { await call("POST", `${path}/${what}`); await load(); };
  const buttons = element("div", "", { className: "buttons" });
  const isPaused = item.state === "paused";
  buttons.append(
    isPaused ? action("Resume", item.name, change("resume")) : action("Pause", item.name, change("pause")),
    action("Skip next", item.name, change("skip-next")),
    action("Run now", item.name, change("run")),
    action("History", item.name, () => showHistory(item.name, history)),
    action("Edit", item.name, async () => edit(item)),
    action("Delete", item.name, async () => {
      if (!confirm(`Delete ${item.name}?`)) return;
      await call("DELETE", path);
      await load();
    }),
  );
  const next = item.next ? `Next: ${local(item.next, zone())}` : "No next fire time";
  shown.append(title, element("p", item.text), element("p", item.rule, { className: "rule" }),
    element("p", next, { className: "hint" }), buttons, history);
  return shown;
}

async function load() {
  const items = await call("GET", "reminders");
  list.replaceChildren(...items.map(card));
  document.querySelector("#empty").hidden = items.length > 0;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const body = {
    name: form.elements.name.value, kind: form.kind.value, text: form.text.value, rule: rule(),
  };
  try {
    if (edited === null) await call("POST", "reminders", body);
    else await call("PUT", `reminders/${encodeURIComponent(edited)}`, body);
    message.textContent = edited === null ? `${body.name} is created.` : `${body.name} is changed.`;
    endEdit();
    await load();
  } catch (error) {
    showErrors(error.errors || { form: String(error) });
    form.querySelector("[aria-invalid=true]")?.focus();
  }
});
for (const type of ["input", "change"]) {
  form.addEventListener(type, () => { showFields(); previewSoon(); });
}
document.querySelector("#cancel").addEventListener("click", endEdit);
document.querySelector("#timezone").addEventListener("change", () => reporting(async () => {
  await call("PUT", "timezone", { timezone: zone() });
  await Promise.all([load(), preview()]);
}));
showFields();
preview();
reporting(load);
