//! The page of a running operator.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::browser::Tab;
use clientapp_crd::ClientApp;
use e2e::charts;
use e2e::lab::{Lab, Tenant, hostname};
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::{DESK, PHONE, fits, is_legible, open, text, trials, was_quiet};

pub fn trials() -> Vec<Trial> {
    trials![
        from_the_form_to_ready_and_gone_by_keyboard_alone,
        what_users_write_is_text_and_nothing_else,
        on_a_phone_everything_fits_and_is_legible_by_night_and_by_day,
        the_picture_of_the_readme,
    ]
}

/// The page's address.
fn url(lab: &Lab) -> String {
    lab.operator().as_mut().expect("an operator runs").api_url().expect("it serves the API")
}

/// A spec without database, Redis and volume, plus the given fields.
async fn create(tenant: &Tenant, name: &str, more: Value) {
    let mut spec = json!({
        "hostname": hostname(tenant, name), "postgres": {"enabled": false}, "redis": {"enabled": false},
        "persistence": {"enabled": false},
    });
    let Value::Object(more) = more else { panic!("specs are objects") };
    spec.as_object_mut().unwrap().extend(more);
    tenant.create(name, spec).await.unwrap();
}

/// Waits until the row of an instance shows a state.
async fn row(tab: &Tab, name: &str, state: &str) {
    tab.wait(&format!(
        "[...document.querySelectorAll('#instances tbody tr')]
           .some((row) => row.cells[0].firstChild.textContent === {} && row.dataset.state === {})",
        json!(name),
        json!(state),
    ))
    .await;
}

async fn from_the_form_to_ready_and_gone_by_keyboard_alone() {
    let tenant = Lab::shared().await.tenant("page-keys").await;
    // The API creates nothing in a namespace of another owner.
    tenant.kubectl(&["label", "namespace", "page-keys", "app.kubernetes.io/managed-by=clientapp-operator"]).unwrap();
    let url = url(tenant.lab);
    let tab = open(&format!("{url}/#/page-keys"), DESK).await;
    tab.wait("!document.querySelector('#nothing').hidden").await;

    // An error is shown at its field.
    tab.tab_to("#new").await;
    tab.press("Enter").await;
    tab.wait("document.querySelector('#create').open && document.activeElement.name === 'hostname'").await;
    tab.write("Not a name").await;
    tab.press("Enter").await;
    tab.wait("document.querySelector('[name=hostname][aria-invalid]') === document.activeElement").await;
    assert_ne!(text(&tab, "#create .field:has([name=hostname]) [role=alert]").await, "");
    assert!(tab.accessible().await.unwrap().contains(&("alert".to_owned(), String::new())));

    // Escape cancels, and discards the input.
    tab.press("Escape").await;
    tab.wait("!document.querySelector('#create').open && document.activeElement.id === 'new'").await;
    tab.press("Enter").await;
    tab.wait("document.activeElement.name === 'hostname' && document.activeElement.value === ''").await;
    assert_eq!(tab.evaluate("document.querySelectorAll('#create [aria-invalid]').length").await.unwrap(), 0);
    tab.write(&hostname(&tenant, "acme")).await;
    tab.tab_to("[name=ingressClassName]").await;
    tab.write("traefik").await;
    tab.tab_to("[name=name]").await;
    tab.write("acme").await;
    // The namespace of the list.
    assert_eq!(tab.evaluate("document.querySelector('#create [name=namespace]').value").await.unwrap(), "page-keys");
    tab.tab_to("[name='persistence.size']").await;
    tab.write("2Gi").await;
    tab.tab_to("[name='redis.enabled']").await;
    tab.press("Space").await;
    tab.press("Enter").await;

    // The password, once.
    tab.wait("document.querySelector('#created').open && document.activeElement.id === 'copy'").await;
    let password = tab.evaluate("document.querySelector('#password').value").await.unwrap();
    let password = password.as_str().unwrap();
    let secret = tenant.api::<Secret>().get("acme-admin-secret").await.unwrap();
    assert_eq!(secret.data.unwrap()["nextcloud-password"].0, password.as_bytes());
    let note = text(&tab, "#created-note").await;
    assert!(note.contains("shown only once") && note.contains("acme-admin-secret"), "{note}");
    tab.press("Enter").await;
    tab.wait("document.querySelector('#copied').textContent === 'Copied'").await;
    let spec = tenant.api::<ClientApp>().get("acme").await.unwrap().spec;
    assert_eq!(spec.hostname, hostname(&tenant, "acme"));
    assert_eq!((spec.redis.enabled, spec.postgres.enabled, spec.profile), (false, true, None));
    assert_eq!((spec.persistence.size.as_deref(), spec.ingress_class_name.as_deref()), (Some("2Gi"), Some("traefik")));

    // The page shows it becoming Ready.
    tab.tab_to("#created-open").await;
    tab.press("Enter").await;
    tab.wait("location.hash === '#/page-keys/acme' && document.activeElement.id === 'detail-title'").await;
    tab.wait("document.querySelector('#detail').dataset.state === 'Ready' && !document.querySelector('#live').hidden")
        .await;
    tenant.ready("acme", 1).await;
    let heard = tab.wait("document.querySelector('#announcer').textContent").await;
    assert_eq!(heard, "acme: Ready");
    assert!(!tab.evaluate("document.documentElement.outerHTML").await.unwrap().as_str().unwrap().contains(password));
    assert_eq!(tab.evaluate("document.querySelector('#password').value").await.unwrap(), "");
    let conditions = tab
        .evaluate("[...document.querySelectorAll('#conditions tbody tr')].map((row) => `${row.cells[0].textContent} ${row.cells[1].textContent}`)")
        .await
        .unwrap();
    for expected in ["Ready True", "PostgresReady True", "Released True", "WorkloadsReady True", "Stalled False"] {
        assert!(conditions.as_array().unwrap().contains(&json!(expected)), "{conditions}");
    }
    for (reason, sentence) in tenant.events("acme").await {
        tab.wait(&format!(
            "[...document.querySelectorAll('#events li')]
               .some((item) => item.textContent.includes({}) && item.textContent.includes({}))",
            json!(reason),
            json!(sentence),
        ))
        .await;
    }
    let link = tab.evaluate("document.querySelector('#detail-place a').href").await.unwrap();
    assert_eq!(link, format!("http://{}/", hostname(&tenant, "acme")));

    // A change by another client is noticed and announced.
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tab.wait(&format!("document.querySelector('#facts').textContent.includes('Version{}')", charts::PATCH)).await;
    tab.wait("document.querySelector('#facts').textContent.includes('Revision2')").await;

    // Deletion requires typing the name.
    tab.tab_to("#delete").await;
    tab.press("Enter").await;
    tab.wait("document.activeElement.id === 'remove-name'").await;
    tab.press("Escape").await;
    tab.wait("!document.querySelector('#remove').open && document.activeElement.id === 'delete'").await;
    tab.press("Enter").await;
    tab.wait("document.activeElement.id === 'remove-name'").await;
    tab.write("acm").await;
    tab.press("Enter").await;
    assert_eq!(tab.evaluate("document.querySelector('#remove [type=submit]').disabled").await.unwrap(), true);
    tab.write("e").await;
    tab.press("Enter").await;
    tab.wait(
        "location.hash === '#/page-keys' && document.querySelector('#announcer').textContent === 'acme is deleted.'",
    )
    .await;
    assert!(tenant.api::<ClientApp>().get_opt("acme").await.unwrap().is_none());

    was_quiet(&tab, &url, &["422"]).await;
}

async fn what_users_write_is_text_and_nothing_else() {
    let tenant = Lab::shared().await.tenant("page-markup").await;
    let url = url(tenant.lab);
    let markup = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";
    // A value that helm would change is refused with its key, which can be any text. No other field of the spec can.
    create(&tenant, "evil", json!({"values": {(markup): 9_007_199_254_740_993_i64}})).await;
    let told = tenant
        .wait_for("evil", "told about its values", |app: Option<&ClientApp>| {
            let conditions = &app?.status.as_ref()?.conditions;
            conditions.iter().map(|condition| condition.message.clone()).find(|message| message.contains(markup))
        })
        .await;
    let app = tenant.api::<ClientApp>().get("evil").await.unwrap();
    let event = json!({
        "metadata": {"name": "evil.1", "namespace": "page-markup"}, "type": "Warning", "reason": markup, "action": "Test",
        "note": markup, "eventTime": "2026-01-02T03:04:05.000000Z", "reportingController": "test", "reportingInstance": "test",
        "regarding": {
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp", "name": "evil",
            "namespace": "page-markup", "uid": app.metadata.uid,
        },
    });
    let event = serde_json::from_value(event).unwrap();
    tenant.api::<k8s_openapi::api::events::v1::Event>().create(&PostParams::default(), &event).await.unwrap();

    let tab = open(&format!("{url}/#/page-markup"), DESK).await;
    row(&tab, "evil", "Stalled").await;
    tab.evaluate("location.hash = '#/page-markup/evil'").await.unwrap();
    for (part, said) in [("#detail-message", told.as_str()), ("#conditions", &told), ("#events", markup)] {
        tab.wait(&format!("document.querySelector('{part}').textContent.includes({})", json!(said))).await;
    }
    assert_eq!(tab.evaluate("document.title").await.unwrap(), "evil – ClientApp operator");
    assert_eq!(tab.evaluate("document.querySelectorAll('img, main script').length").await.unwrap(), 0);
    // In the address as well.
    tab.evaluate(&format!("location.hash = `#/page-markup/${{encodeURIComponent({})}}`", json!(markup))).await.unwrap();
    tab.wait("!document.querySelector('#problem').hidden").await;
    assert_eq!(text(&tab, "#detail-title").await, markup);
    assert_eq!(tab.evaluate("document.querySelectorAll('img, main script').length").await.unwrap(), 0);

    // An invalid name is refused or not found.
    was_quiet(&tab, &url, &["status of 4"]).await;
}

async fn on_a_phone_everything_fits_and_is_legible_by_night_and_by_day() {
    let tenant = Lab::shared().await.tenant("page-phone").await;
    let url = url(tenant.lab);
    let long = "a-name-as-long-as-names-may-be-at-all";
    create(&tenant, long, json!({"chartVersion": "9.9.9"})).await;
    create(&tenant, "acme", json!({})).await;
    tenant.ready("acme", 1).await;

    let tab = open(&format!("{url}/#/page-phone"), PHONE).await;
    tab.prefer(&[("prefers-color-scheme", "dark"), ("prefers-reduced-motion", "reduce")]).await.unwrap();
    row(&tab, "acme", "Ready").await;
    fits(&tab, "the list").await;
    is_legible(&tab, "the list").await;
    let background = tab.evaluate("getComputedStyle(document.body).backgroundColor").await.unwrap();
    assert_eq!(background, "rgb(17, 21, 27)");
    assert_eq!(tab.evaluate("document.getAnimations().length").await.unwrap(), 0);
    tab.tab_to("#new").await;
    tab.press("Enter").await;
    tab.wait("document.querySelector('#create').open").await;
    fits(&tab, "the form").await;
    is_legible(&tab, "the form").await;
    let outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle").await.unwrap();
    assert_eq!(outline, "solid");
    tab.press("Escape").await;

    tab.evaluate(&format!("location.hash = '#/page-phone/{long}'")).await.unwrap();
    tab.wait("document.querySelectorAll('#conditions tbody tr').length >= 6").await;
    fits(&tab, "an instance").await;
    is_legible(&tab, "an instance").await;
    tab.tab_to("#delete").await;
    tab.press("Enter").await;
    tab.wait("document.querySelector('#remove').open").await;
    fits(&tab, "the question").await;
    tab.press("Escape").await;
    tab.prefer(&[("prefers-color-scheme", "light")]).await.unwrap();
    is_legible(&tab, "an instance by day").await;
    tab.evaluate("location.hash = '#/page-phone'").await.unwrap();
    row(&tab, "acme", "Ready").await;
    is_legible(&tab, "the list by day").await;

    was_quiet(&tab, &url, &[]).await;
}

async fn the_picture_of_the_readme() {
    let tenant = Lab::shared().await.tenant("tenants").await;
    let url = url(tenant.lab);
    let standalone = json!({"provider": "standalone"});
    let acme = json!({"hostname": "acme.example.com", "ingressClassName": "traefik", "postgres": standalone});
    create(&tenant, "acme", acme).await;
    create(&tenant, "bluebird", json!({"hostname": "bluebird.example.com", "chartVersion": charts::NEVER_READY})).await;
    create(&tenant, "cedar", json!({"hostname": "cedar.example.com", "chartVersion": "5.9.9"})).await;
    create(&tenant, "dove", json!({"hostname": "dove.example.com", "suspend": true})).await;
    tenant.ready("acme", 1).await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;

    let tab = open(&format!("{url}/#/tenants"), (1120, 560)).await;
    tab.prefer(&[("prefers-reduced-motion", "reduce")]).await.unwrap();
    row(&tab, "acme", "Ready").await;
    row(&tab, "bluebird", "Not ready").await;
    row(&tab, "cedar", "Stalled").await;
    row(&tab, "dove", "Suspended").await;
    let cells = tab
        .evaluate("[...document.querySelector('#instances tbody tr').cells].slice(0, 6).map((cell) => cell.innerText.split('\\n')[0])")
        .await
        .unwrap();
    assert_eq!(cells, json!(["acme", "Ready", "acme.example.com", charts::PATCH, "2", "Ready"]));

    // The information for assistive technology.
    let told = tab.accessible().await.unwrap();
    let count = |role: &str| told.iter().filter(|(found, _)| found == role).count();
    assert_eq!((count("main"), count("table"), count("columnheader"), count("rowheader")), (1, 1, 7, 4), "{told:#?}");
    for (role, name) in [
        ("heading", "Instances"),
        ("table", "Instances"),
        ("button", "New instance"),
        ("searchbox", "Filter"),
        ("textbox", "Namespace"),
        ("link", "acme"),
        ("link", "acme.example.com"),
        ("columnheader", "State"),
    ] {
        assert!(told.contains(&(role.to_owned(), name.to_owned())), "{role} {name} is not in {told:#?}");
    }

    let picture = tab.screenshot().await.unwrap();
    let seen = Picture::read(&picture);
    assert_eq!((seen.width, seen.height), (1120, 560));
    let colours: BTreeSet<_> =
        (0..seen.height).flat_map(|y| (0..seen.width).map(move |x| (x, y))).map(|at| seen.at(at)).collect();
    assert!(colours.len() > 100, "{} colours", colours.len());
    let background = seen.at((2, 2));
    for part in [
        "#list-title",
        "#new",
        "tr[data-state=Ready] .pill",
        "tr[data-state=Stalled] .pill",
        "tr[data-state=Suspended] .pill",
    ] {
        let place = format!(
            "(({{x, y, width, height}}) => [x, y, x + width, y + height].map(Math.round))(document.querySelector({}).getBoundingClientRect())",
            json!(part)
        );
        let place = tab.evaluate(&place).await.unwrap();
        let edge = |index: usize| u32::try_from(place[index].as_u64().unwrap()).unwrap();
        let drawn = (edge(1)..edge(3)).flat_map(|y| (edge(0)..edge(2)).map(move |x| (x, y)));
        let drawn = drawn.filter(|&at| seen.at(at) != background && seen.at(at) != [255, 255, 255]).count();
        assert!(drawn > 50, "{part} is blank: {drawn} pixels");
    }

    was_quiet(&tab, &url, &[]).await;
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("page.png"), picture).unwrap();
    }
}

/// A decoded PNG.
struct Picture {
    width: u32,
    height: u32,
    channels: usize,
    pixels: Vec<u8>,
}

impl Picture {
    fn read(file: &[u8]) -> Picture {
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!(info.bit_depth, png::BitDepth::Eight);
        Picture { width: info.width, height: info.height, channels: info.color_type.samples(), pixels }
    }

    fn at(&self, (x, y): (u32, u32)) -> [u8; 3] {
        let start = (y as usize * self.width as usize + x as usize) * self.channels;
        [self.pixels[start], self.pixels[start + 1], self.pixels[start + 2]]
    }
}
