// All instances, or those of a namespace.

import { get } from "./api.js";
import { announce, by, databaseOf, fill, host, link, make, pill, since, stateOf, tell } from "./view.js";

const PAGE = 50;
const REFRESH_MS = 5000;
const LABELS = ["Name", "State", "Hostname", "Version", "Revision", "Database", "Age"];

let namespace = "";
let instances = [];
let pages = 1;
let more = false;
let timer = null;
let reading = null;
const rows = new Map();
const states = new Map();

/** Shows the list of a namespace, or ("") of all, and keeps it current until hide. */
export function show(chosen) {
  if (chosen !== namespace) {
    namespace = chosen;
    pages = 1;
    instances = [];
    states.clear();
  }
  by("namespace").value = namespace;
  document.title = "Instances – ClientApp operator";
  by("list").hidden = false;
  return refresh();
}

/** Stops what show started. */
export function hide() {
  by("list").hidden = true;
  pause();
}

/** Sends no requests until the next refresh. */
export function pause() {
  reading?.abort();
  clearTimeout(timer);
}

/** Reads the list now, and then every few seconds. */
export async function refresh() {
  pause();
  const mine = (reading = new AbortController());
  try {
    const read = await readPages(mine.signal);
    if (mine.signal.aborted) return;
    ({ instances, more } = read);
    tell(by("problem"), null);
    announceChanges();
    render();
  } catch (problem) {
    if (mine.signal.aborted) return;
    tell(by("problem"), problem);
    // Without a token, retrying is pointless.
    if (problem.status === 401) return;
  }
  timer = setTimeout(refresh, REFRESH_MS);
}

async function readPages(signal) {
  const found = [];
  let token;
  for (let page = 0; page < pages; page++) {
    const query = new URLSearchParams({ limit: PAGE });
    if (namespace) query.set("namespace", namespace);
    if (token) query.set("continue", token);
    const answer = await get(`instances?${query}`, { signal });
    found.push(...answer.items);
    token = answer.continue;
    if (!token) break;
  }
  return { instances: found, more: Boolean(token) };
}

function announceChanges() {
  const before = new Map(states);
  states.clear();
  const changes = [];
  for (const instance of instances) {
    const [word] = stateOf(instance);
    const key = link(instance);
    if (before.has(key) && before.get(key) !== word) changes.push(`${instance.name}: ${word}`);
    states.set(key, word);
  }
  if (changes.length > 0) announce(changes.join(", "));
}

function render() {
  const typed = by("filter").value.trim();
  const wanted = typed.toLowerCase();
  const matches = ({ name, namespace, hostname, ...rest }) =>
    [name, namespace, hostname, rest.profile, rest.reason, stateOf(rest)[0], ...Object.entries(rest.labels ?? {}).flat()]
      .some((text) => text?.toLowerCase().includes(wanted));
  const found = instances.filter(matches);
  place(found.map(row));
  const all = `${instances.length}${more ? " and more" : instances.length === 1 ? " instance" : " instances"}`;
  by("count").textContent = wanted ? `${found.length} of ${all}` : all;
  by("instances").hidden = found.length === 0;
  by("nothing").hidden = found.length > 0;
  by("nothing").textContent = wanted ? `Nothing here matches “${typed}”.` : "There are no instances yet.";
  by("more").hidden = !more;
}

/** Orders the rows, moving only misplaced ones, so that the focus is kept. */
function place(wanted) {
  const body = by("instances").tBodies[0];
  const keep = new Set(wanted);
  for (const row of [...body.rows]) if (!keep.has(row)) row.remove();
  wanted.forEach((row, index) => {
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
  });
}

function row(instance) {
  const key = link(instance);
  let row = rows.get(key);
  if (!row) {
    const cells = LABELS.map((label, index) =>
      make(index === 0 ? "th" : "td", index === 0 ? { role: "rowheader", scope: "row" } : { role: "cell", "data-label": label }));
    row = make("tr", { role: "row" }, ...cells);
    rows.set(key, row);
  }
  const [name, state, hostname, version, revision, database, age] = row.cells;
  const [word, form, tone] = stateOf(instance);
  row.dataset.state = word;
  const quiet = (text) => (text ? make("small", {}, text) : null);
  fill(name, make("a", { href: key }, instance.name), quiet(namespace ? null : instance.namespace));
  // A reason that says no more than the state does.
  const told = tone === "good" || instance.reason === word.replace(" r", "R");
  fill(state, pill(word, form, tone), told ? null : quiet(instance.reason));
  fill(hostname, host(instance));
  fill(version, instance.chartVersion || "–", quiet(instance.profile));
  fill(revision, instance.revision ? `${instance.revision}` : "–");
  fill(database, databaseOf(instance), quiet(instance.database?.provider));
  fill(age, since(instance.created));
  return row;
}

/** Handles user input on the list. */
export function listen() {
  by("filter").addEventListener("input", render);
  by("search").addEventListener("submit", (event) => event.preventDefault());
  by("namespace").addEventListener("change", () => {
    const chosen = by("namespace").value.trim();
    location.hash = chosen ? `#/${encodeURIComponent(chosen)}` : "#/";
  });
  by("more").addEventListener("click", () => {
    pages += 1;
    void refresh();
  });
}
