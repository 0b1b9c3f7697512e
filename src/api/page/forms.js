// The dialogs: a new instance and its password, a deletion, a token.

import { attemptKey, path, send } from "./api.js";
import { announce, by, link, open, tell } from "./view.js";

/** Wires the dialogs. `changed` is called after each successful change. */
export function listen(changed) {
  createForm(changed);
  passwordDialog();
  removeForm(changed);
}

function createForm(changed) {
  const dialog = by("create");
  const form = dialog.querySelector("form");
  // Repeating a request after a lost response uses the same key; a changed request gets a new one.
  let attempt = { body: null, key: null };
  by("new").addEventListener("click", () => {
    form.reset();
    blame(form, null);
    form.elements.namespace.value = by("namespace").value;
    open(dialog);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const body = JSON.stringify(asked(form));
    if (body !== attempt.body) attempt = { body, key: attemptKey() };
    void submit(form, async () => {
      const headers = { "content-type": "application/json", "idempotency-key": attempt.key };
      const made = await (await send("POST", "instances", { body, headers })).json();
      attempt = { body: null, key: null };
      dialog.close();
      showPassword(made);
      changed();
    });
  });
}

/** The request of the form; omitted fields take the operator's defaults. */
function asked(form) {
  const wanted = {};
  for (const input of form.elements) {
    const [name, inner] = input.name.split(".");
    const value = input.type === "checkbox" ? (input.checked ? undefined : false) : input.value.trim() || undefined;
    if (!name || value === undefined) continue;
    if (inner) wanted[name] = { ...wanted[name], [inner]: value };
    else wanted[name] = value;
  }
  return wanted;
}

/** Submits a form, once at a time, and shows errors in it. */
export async function submit(form, act) {
  const button = form.querySelector("[type=submit]");
  if (button.ariaBusy === "true") return;
  button.ariaBusy = "true";
  blame(form, null);
  try {
    await act();
  } catch (problem) {
    blame(form, problem);
  } finally {
    button.ariaBusy = "false";
  }
}

/** Shows an error at the field at fault, or above the form if it concerns none. */
function blame(form, problem) {
  for (const error of form.querySelectorAll(".error")) error.remove();
  for (const input of form.querySelectorAll("[aria-invalid]")) {
    input.removeAttribute("aria-invalid");
    input.removeAttribute("aria-errormessage");
  }
  const field = problem?.field?.replace(/^spec\./, "");
  const inputs = [...form.elements].filter((input) => input.name);
  const input = field && (inputs.find(({ name }) => name === field) ?? inputs.find(({ name }) => name.split(".")[0] === field.split(".")[0]));
  tell(form.querySelector(".problem"), input ? null : problem);
  if (!input) return;
  const error = document.createElement("p");
  error.id = "field-error";
  error.className = "error";
  error.setAttribute("role", "alert");
  error.textContent = problem.message;
  input.closest(".field").append(error);
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-errormessage", error.id);
  input.focus();
}

function passwordDialog() {
  const dialog = by("created");
  by("copy").addEventListener("click", async () => {
    by("password").select();
    // The clipboard API exists only over https and on localhost; execCommand works everywhere.
    const write = navigator.clipboard?.writeText(by("password").value) ?? Promise.reject();
    const copied = await write.then(() => true, () => document.execCommand("copy"));
    by("copy").textContent = copied ? "Copied" : "Copy it yourself";
    by("copied").textContent = by("copy").textContent;
  });
  by("created-open").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    by("password").value = "";
    by("copied").textContent = "";
  });
}

function showPassword({ name, namespace, adminSecret, adminPassword }) {
  by("created-title").textContent = `${name} is being created`;
  // The response to a repeated attempt does not contain it.
  by("password-field").hidden = !adminPassword;
  by("password").value = adminPassword ?? "";
  by("copy").textContent = "Copy";
  const secret = `the Secret ${adminSecret} in the namespace ${namespace}`;
  by("created-note").textContent = adminPassword
    ? `It is shown only once. Later, read it from ${secret}.`
    : `The administrator’s password was in a response that was lost. Read it from ${secret}.`;
  by("created-open").href = link({ namespace, name });
  open(by("created"));
  by(adminPassword ? "copy" : "created-open").focus();
}

let leaving = null;

/** Asks for confirmation to delete an instance. */
export function askToRemove(instance) {
  leaving = instance;
  const dialog = by("remove");
  const form = dialog.querySelector("form");
  form.reset();
  blame(form, null);
  form.querySelector("[type=submit]").disabled = true;
  by("remove-title").textContent = `Delete ${instance.name}?`;
  by("remove-expected").textContent = instance.name;
  open(dialog);
  by("remove-name").focus();
}

function removeForm(changed) {
  const dialog = by("remove");
  const form = dialog.querySelector("form");
  const confirmed = () => by("remove-name").value.trim() === leaving?.name;
  by("remove-name").addEventListener("input", () => (form.querySelector("[type=submit]").disabled = !confirmed()));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!confirmed()) return;
    void submit(form, async () => {
      await send("DELETE", path(leaving));
      dialog.close();
      announce(`${leaving.name} is being deleted.`);
      changed();
    });
  });
}

/** Asks for a token; null when none is given. */
export function askForToken(problem) {
  const dialog = by("sign-in");
  const form = dialog.querySelector("form");
  form.reset();
  tell(form.querySelector(".problem"), problem);
  open(dialog);
  return new Promise((resolve) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      const token = by("token").value.trim();
      if (token === "") return;
      resolve(token);
      dialog.close();
    };
    dialog.onclose = () => {
      form.reset();
      resolve(null);
    };
  });
}
