// The page of the API: the hash selects the view. `#/` is all instances, `#/namespace` those of one,
// `#/namespace/name` one instance.

import { forgetToken, hasToken, onUnauthorized } from "./api.js";
import * as backups from "./backups.js";
import * as detail from "./detail.js";
import * as forms from "./forms.js";
import * as list from "./list.js";
import { announce, by, tell } from "./view.js";

function route() {
  const [namespace = "", name = ""] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  list.hide();
  detail.hide();
  tell(by("problem"), null);
  if (name) {
    void detail.show({ namespace, name }, gone);
  } else {
    by("back").href = location.hash || "#/";
    void list.show(namespace);
  }
  by("sign-out").hidden = !hasToken();
}

function gone({ name }) {
  location.hash = by("back").hash;
  announce(`${name} is deleted.`);
}

onUnauthorized(async (problem) => {
  const token = await forms.askForToken(problem);
  by("sign-out").hidden = token === null;
  return token;
});
list.listen();
forms.listen(() => by("list").hidden || void list.refresh());
backups.listen();
by("delete").addEventListener("click", () => forms.askToRemove(detail.current()));
by("sign-out").addEventListener("click", () => {
  forgetToken();
  // Removes everything that was read with it from the page.
  location.reload();
});
addEventListener("hashchange", () => {
  route();
  // Screen readers start at the heading, as after following a link to another page.
  document.querySelector("section:not([hidden]) h1").focus({ preventScroll: true });
  scrollTo(0, 0);
});
// No requests are sent while the page is hidden.
document.addEventListener("visibilitychange", () => {
  const view = by("list").hidden ? { pause: detail.pause, resume: detail.watch } : { pause: list.pause, resume: list.refresh };
  void (document.hidden ? view.pause() : view.resume());
});
route();
