//! The images of the scenario: the operator, CloudNativePG, and what runs in a tenant's pods, each under the name by which it is asked for.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tar::Archive;

use super::images::{PATH, layer};
use super::rootfs::POSTGRES;
use crate::charts::VERSIONS;
use crate::image::{Image, Layer};
use crate::operator;
use crate::progress::Progress;
use crate::release;
use crate::tools::{Extra, Tools};

/// As `kustomization.yaml` names it.
pub(super) const OPERATOR: &str = "registry.example.com/platform/clientapp-operator";
const APP: [(&str, &str); 4] = [
    ("entrypoint.sh", include_str!("../../node/app/entrypoint.sh")),
    ("usr/src/app/app.php", include_str!("../../node/app/app.php")),
    ("usr/src/app/status.php", include_str!("../../node/app/status.php")),
    ("usr/src/app/occ", include_str!("../../node/app/occ")),
];
/// Redis, beside everything else that the root file system has.
pub(super) const TOOLS: &str = "docker.io/bitnamilegacy/redis:7.2.5-debian-12-r0";
/// Bitnami's image takes the password from its environment. The chart mounts its volume at `/data`.
const REDIS: &str = "exec redis-server - <<END\nrequirepass $REDIS_PASSWORD\nprotected-mode no\ndir /data\nEND";

/// A port that only root may have, unless the environment names another.
const SERVE: &str = "exec php -S 0.0.0.0:${PORT:-80} -t /var/www/html";

/// Returns all images. `debian`: the root file system, an archive at `root`.
pub(super) fn images(debian: &Layer, root: &Path, tools: &Tools) -> Result<Vec<Image>> {
    let progress = Progress::hidden();
    let mut images = vec![
        Image {
            names: vec![TOOLS.to_owned()],
            config: json!({"Env": [PATH], "Cmd": ["sh", "-c", REDIS]}),
            layers: vec![debian.clone()],
        },
        Image {
            names: vec![format!("docker.io/library/postgres:{}", official(POSTGRES)?)],
            config: postgres(json!({"Cmd": ["postgres"], "StopSignal": "SIGINT"})),
            layers: vec![debian.clone()],
        },
        operator_image(tools, &progress)?,
    ];
    let app = layer("app", |files| APP.iter().try_for_each(|(path, text)| files.file(path, 0o755, text.as_bytes())))?;
    let versions: BTreeSet<_> = VERSIONS.iter().map(|version| version.app).collect();
    images.extend(versions.into_iter().map(|version| Image {
        names: vec![format!("docker.io/library/nextcloud:{version}-apache")],
        config: json!({
            "Env": [PATH, format!("NEXTCLOUD_VERSION={version}"), "PHP_CLI_SERVER_WORKERS=4"],
            "Entrypoint": ["/entrypoint.sh"], "Cmd": ["sh", "-c", SERVE],
            "WorkingDir": "/var/www/html",
        }),
        layers: vec![debian.clone(), app.clone()],
    }));
    images.extend(cloudnativepg(debian, root, &progress)?);
    Ok(images)
}

/// Returns the tag that the operator asks for.
fn official(major: &str) -> Result<String> {
    let source = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../src/postgresql/desired.rs"))?;
    let tags = source.split('"').find(|text| text.starts_with(&format!("{major}.")) && text.contains('-'));
    tags.map(str::to_owned).with_context(|| format!("the operator has no image of PostgreSQL {major}"))
}

fn postgres(more: Value) -> Value {
    let path = PATH.replace("PATH=", &format!("PATH=/usr/lib/postgresql/{POSTGRES}/bin:"));
    let mut config =
        json!({"Env": [path, "LANG=C.UTF-8", "PGDATA=/var/lib/postgresql/data", format!("PG_MAJOR={POSTGRES}")]});
    json_patch::merge(&mut config, &more);
    config
}

/// The stages of the Dockerfile's last part, with this build of the operator and the libraries that it is linked with.
fn operator_image(tools: &Tools, progress: &Progress) -> Result<Image> {
    let program = operator::binary()?;
    let restic = Extra::Restic.ensure(progress)?;
    let programs = layer("operator", |files| {
        files.directory("tmp", 0o755, 65532)?;
        files.program("clientapp-operator", program)?;
        files.program("helm", &tools.helm)?;
        files.program("restic", &restic)?;
        for library in libraries(program)? {
            files.program(library.to_string_lossy().trim_start_matches('/'), &library)?;
        }
        Ok(())
    })?;
    Ok(Image { names: vec![format!("{OPERATOR}:0.1.0")], config: release::image_config(), layers: vec![programs] })
}

/// Returns the shared libraries of a program, its loader included.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    ensure!(output.status.success(), "ldd: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// Its operator without a libc, and PostgreSQL with the user that it expects.
fn cloudnativepg(debian: &Layer, root: &Path, progress: &Progress) -> Result<[Image; 2]> {
    let manager = Extra::CloudNativePg.ensure(progress)?;
    let operator = layer("cloudnativepg", |files| {
        let name = if cfg!(target_arch = "aarch64") { "operator/manager_arm64" } else { "operator/manager_amd64" };
        files.program(name, &manager)?;
        files.link("manager", name)
    })?;
    let user = layer("cloudnativepg-user", |files| {
        for name in ["etc/passwd", "etc/group"] {
            let text = read(root, name)?.replace("postgres:x:999:999:", "postgres:x:26:26:");
            files.file(name, 0o644, text.replace("postgres:x:999:", "postgres:x:26:").as_bytes())?;
        }
        Ok(())
    })?;
    Ok([
        Image {
            names: vec!["ghcr.io/cloudnative-pg/cloudnative-pg:1.30.0".to_owned()],
            config: json!({"User": "65532:65532", "Entrypoint": ["/manager"]}),
            layers: vec![operator],
        },
        Image {
            names: vec![format!("ghcr.io/cloudnative-pg/postgresql:{POSTGRES}")],
            config: postgres(json!({"User": "26"})),
            layers: vec![debian.clone(), user],
        },
    ])
}

/// Returns the image of CloudNativePG's Poolers, which look for PgBouncer elsewhere than Debian has it.
pub(super) fn pgbouncer(newer: &Layer) -> Result<Image> {
    let link = layer("pgbouncer", |files| files.link("usr/bin/pgbouncer", "/usr/sbin/pgbouncer"))?;
    Ok(Image {
        names: vec!["ghcr.io/cloudnative-pg/pgbouncer:1.25.1".to_owned()],
        config: json!({"User": "998:996", "Env": [PATH]}),
        layers: vec![newer.clone(), link],
    })
}

/// Returns the text of a file of the root file system.
fn read(root: &Path, name: &str) -> Result<String> {
    for entry in Archive::new(File::open(root)?).entries()? {
        let mut entry = entry?;
        if entry.path()?.to_string_lossy().trim_start_matches("./") == name {
            let mut text = String::new();
            entry.read_to_string(&mut text)?;
            return Ok(text);
        }
    }
    anyhow::bail!("the root file system has no {name}")
}
