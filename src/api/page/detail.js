// One instance: its state, conditions and events, as they change.

import { get, path, stream } from "./api.js";
import * as backups from "./backups.js";
import { announce, by, conditionPill, databaseOf, fill, host, make, pill, since, stateOf, tell } from "./view.js";

const RETRY_MS = [1000, 2000, 5000, 10000];
const CLOCK_MS = 10000;

let chosen = null;
let gone = null;
let watching = null;
let clock = null;
let instance = null;
let word = null;
let events = new Map();

/** The instance that is shown, or null. */
export const current = () => instance;

/** Shows an instance until hide, and calls `deleted` when it is gone. */
export function show(which, deleted) {
  [chosen, gone, instance, word, events] = [which, deleted, null, null, new Map()];
  document.title = `${chosen.name} – ClientApp operator`;
  by("detail-title").textContent = chosen.name;
  by("detail-place").textContent = chosen.namespace;
  by("events").replaceChildren();
  by("no-events").hidden = false;
  for (const part of ["delete", "detail-body"]) by(part).hidden = true;
  by("detail").hidden = false;
  return watch();
}

/** Stops what show started. */
export function hide() {
  by("detail").hidden = true;
  instance = null;
  pause();
}

/** Sends no requests until the next watch. */
export function pause() {
  watching?.abort();
  backups.pause();
  clearInterval(clock);
  by("live").hidden = true;
}

/** Follows the instance, and reconnects when the stream ends. */
export async function watch() {
  pause();
  const mine = (watching = new AbortController());
  clock = setInterval(() => instance && render(), CLOCK_MS);
  for (let failures = 0; !mine.signal.aborted; ) {
    try {
      render(await get(path(chosen), { signal: mine.signal }));
      tell(by("problem"), null);
      void backups.show(chosen);
      for await (const { event, data } of stream(`${path(chosen, "/events")}&follow=true`, mine.signal)) {
        failures = 0;
        by("live").hidden = false;
        if (event === "status") render(data);
        if (event === "event") renderEvent(data);
        if (event === "gone") return gone(chosen);
      }
    } catch (problem) {
      if (mine.signal.aborted) return;
      if (problem.status === 404 && instance !== null) return gone(chosen);
      tell(by("problem"), problem);
      if ([401, 403, 404].includes(problem.status)) return;
    }
    by("live").hidden = true;
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]));
  }
}

function render(next = instance) {
  instance = next;
  const [state, form, tone] = stateOf(instance);
  if (word !== null && word !== state) announce(`${instance.name}: ${state}`);
  word = state;
  by("detail").dataset.state = state;
  by("delete").hidden = instance.deleting;
  by("detail-body").hidden = false;
  fill(by("detail-place"), instance.namespace, " · ", host(instance));
  fill(by("detail-state"), pill(state, form, tone));
  fill(by("detail-message"), instance.message || instance.reason || "No information yet.");
  fill(by("facts"), ...facts(instance));
  fill(by("conditions").tBodies[0], ...instance.conditions.map(conditionRow));
  for (const [key, event] of events) renderEvent(event, key);
}

function facts({ chartVersion, release, revision, database, profile, profileRevision, adminSecret, created, labels }) {
  const small = (text) => (text ? make("small", {}, text) : null);
  const deployed = release?.deployedAt && make("small", {}, `${release.status} `, since(release.deployedAt, true));
  const installed = release?.chartVersion && release.chartVersion !== chartVersion ? `installed: ${release.chartVersion}` : null;
  const chips = Object.entries(labels ?? {}).map(([key, value]) => make("code", { className: "chip" }, value ? `${key}=${value}` : key));
  const rows = [
    ["Version", chartVersion || "–", small(installed ?? (release?.appVersion && `app ${release.appVersion}`))],
    ["Revision", revision ? `${revision}` : "–", deployed || null],
    ["Database", databaseOf({ database }), small([database?.provider, database?.name].filter(Boolean).join(" · "))],
    ["Profile", profile || "None", small(profileRevision && `revision ${profileRevision}`)],
    ["Admin Secret", adminSecret || "–"],
    ["Age", since(created)],
    ...(chips.length > 0 ? [["Labels", make("span", { className: "chips" }, ...chips)]] : []),
  ];
  return rows.map(([term, ...values]) => make("div", {}, make("dt", {}, term), make("dd", {}, ...values)));
}

function conditionRow(condition) {
  const cell = (label, ...content) => make("td", { role: "cell", "data-label": label }, ...content);
  return make(
    "tr",
    { role: "row" },
    make("th", { role: "rowheader", scope: "row" }, condition.type),
    cell("Status", conditionPill(condition)),
    cell("Reason", condition.reason || "–"),
    cell("Message", condition.message || "–"),
    cell("Since", since(condition.lastTransitionTime)),
  );
}

/** Newest first; a repeated event moves up, with its count. */
function renderEvent(event, key = [event.type, event.reason, event.message].join("\n")) {
  const list = by("events");
  const known = events.get(key);
  events.set(key, event);
  let item = [...list.children].find((item) => item.key === key);
  if (!item) item = Object.assign(make("li"), { key });
  item.className = event.type === "Warning" ? "warning" : "";
  const times = event.count > 1 ? make("small", {}, ` ×${event.count}`) : null;
  const mark = event.type === "Warning" ? pill("Warning", "waiting", "warn") : null;
  fill(item, make("p", {}, make("strong", {}, event.reason), times, " ", mark), make("p", {}, event.message), since(event.time));
  by("no-events").hidden = true;
  if (known?.time === event.time && item.isConnected) return;
  item.time = Date.parse(event.time) || 0;
  const older = [...list.children].find((other) => other !== item && other.time <= item.time);
  list.insertBefore(item, older ?? null);
}
