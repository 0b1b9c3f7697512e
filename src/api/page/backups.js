// The backups and restores of one instance, and the requests for more.

import { attemptKey, path, send } from "./api.js";
import { submit } from "./forms.js";
import { announce, by, fill, make, open, pill, since, tell } from "./view.js";

const BUSY_MS = 3000;
const REST_MS = 30000;
const PHASES = { Completed: ["ready", "good"], Failed: ["stalled", "bad"], Running: ["busy", "info"], Pending: ["busy", "info"] };

let instance = null;
let reading = null;
let timer = null;
let refused = new Set();
let phases = new Map();
// The backup that the user is asked about.
let source = null;
// Repeating a request after a lost response uses the same key.
let attempt = { request: null, key: null };

/** Shows them until pause. */
export function show(which) {
  if (which.name !== instance?.name || which.namespace !== instance?.namespace) {
    [instance, refused, phases] = [which, new Set(), new Map()];
    by("backups-section").hidden = true;
    by("backups").tBodies[0].replaceChildren();
  }
  return refresh();
}

/** Sends no requests until the next show. */
export function pause() {
  reading?.abort();
  clearTimeout(timer);
}

async function refresh() {
  pause();
  const mine = (reading = new AbortController());
  let wait = REST_MS;
  try {
    const [backups, restores] = await Promise.all([read("Backup", mine.signal), read("Restore", mine.signal)]);
    if (mine.signal.aborted) return;
    const all = [...backups.items, ...restores.items].sort((a, b) => b.created.localeCompare(a.created));
    render(all, backups.may, restores.may);
    if (all.some(({ phase }) => phase === "Pending" || phase === "Running")) wait = BUSY_MS;
  } catch (problem) {
    if (mine.signal.aborted) return;
    tell(by("backups-problem"), problem);
    if ([401, 404].includes(problem.status)) return;
  }
  timer = setTimeout(refresh, wait);
}

/** A list, and whether the user may add to it. One that the user may not read is empty, and not asked for again. */
async function read(kind, signal) {
  if (refused.has(kind)) return { items: [], may: false };
  try {
    const response = await send("GET", path(instance, `/${kind.toLowerCase()}s`), { signal });
    const { items } = await response.json();
    return { items: items.map((item) => ({ ...item, kind })), may: response.headers.get("allow")?.includes("POST") };
  } catch (problem) {
    if (problem.status !== 403) throw problem;
    refused.add(kind);
    return read(kind, signal);
  }
}

function render(all, mayBackUp, mayRestore) {
  tell(by("backups-problem"), null);
  by("backups-section").hidden = refused.has("Backup");
  by("back-up").hidden = !mayBackUp;
  by("backups").hidden = all.length === 0;
  by("no-backups").hidden = all.length > 0;
  // Rows that are replaced would lose the focus.
  const focused = document.activeElement.closest("#backups button")?.value;
  fill(by("backups").tBodies[0], ...all.map((item) => row(item, mayRestore)));
  if (focused) by("backups").querySelector(`button[value="${CSS.escape(focused)}"]`)?.focus();
  const before = phases;
  phases = new Map(all.map(({ kind, name, phase }) => [`${kind} ${name}`, phase]));
  const changes = [...phases].filter(([item, phase]) => before.has(item) && before.get(item) !== phase);
  if (changes.length > 0) announce(changes.map(([item, phase]) => `${item}: ${phase}`).join(", "));
}

function row({ kind, name, phase, message, created, startedAt, completedAt, backup }, mayRestore) {
  const cell = (label, ...content) => make("td", { role: "cell", "data-label": label }, ...content);
  const restore = kind === "Backup" && phase === "Completed" && mayRestore;
  const label = { type: "button", value: name, "aria-label": `Restore ${name}` };
  return make(
    "tr",
    { role: "row" },
    make("th", { role: "rowheader", scope: "row" }, name, make("small", {}, backup ? `Restore of ${backup}` : kind)),
    cell("Phase", pill(phase, ...(PHASES[phase] ?? ["unknown", "idle"]))),
    cell("Message", message),
    cell("Time", since(completedAt ?? startedAt ?? created, true)),
    cell("", restore ? make("button", label, "Restore …") : null),
  );
}

/** Sends a request, whose key stays the same until it is answered. */
async function request(rest, body) {
  const name = JSON.stringify([instance, rest, body]);
  if (attempt.request !== name) attempt = { request: name, key: attemptKey() };
  const headers = { "content-type": "application/json", "idempotency-key": attempt.key };
  await send("POST", path(instance, rest), { body: JSON.stringify(body), headers });
  attempt = { request: null, key: null };
  void refresh();
}

/** Handles user input. */
export function listen() {
  const dialog = by("restore");
  const form = dialog.querySelector("form");
  const onSubmit = (form, act) =>
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void submit(form, act);
    });
  onSubmit(by("back-up-form"), async () => {
    await request("/backups", {});
    announce(`${instance.name} is being backed up.`);
  });
  by("backups").addEventListener("click", ({ target }) => {
    source = target.closest("button")?.value;
    if (!source) return;
    by("restore-title").textContent = `Restore ${instance.name}?`;
    by("restore-backup").textContent = source;
    tell(form.querySelector(".problem"), null);
    open(dialog);
  });
  onSubmit(form, async () => {
    await request("/restores", { backup: source });
    dialog.close();
    announce(`${instance.name} is being restored.`);
  });
}
