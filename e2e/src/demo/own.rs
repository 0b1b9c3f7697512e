//! The demonstration's own control plane, on the loopback interface.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::task::{JoinHandle, spawn_blocking};

use super::home::Home;
use super::operator::{Operator, Surroundings};
use super::screen::{Commands, say, step};
use super::{Place, Stage, apart};
use crate::manifests;
use crate::percona::Percona;
use crate::plane::ControlPlane;
use crate::progress::Progress;
use crate::repository::Repository;
use crate::tools::{Extra, Tools};

/// In the order in which they are stopped.
#[derive(Default)]
pub(super) struct Own {
    operator: Option<Operator>,
    home: Option<Home>,
    repository: Option<Repository>,
    percona: Option<Percona>,
    plane: Option<ControlPlane>,
    /// The plane while it starts on a thread, which an interruption does not stop.
    starting: Option<JoinHandle<Result<ControlPlane>>>,
}

impl Place for Own {
    async fn set_up(&mut self) -> Result<Stage> {
        say(
            "The ClientApp operator in its own cluster: real servers on the loopback interface, and a node that pretends to run pods.\n",
        );
        // It shows its own progress while it builds.
        let tools = apart(|| Tools::ensure(&Progress::stderr())).await?;
        apart(|| Extra::Percona.ensure(&Progress::stderr())).await?;
        let binary = step("Building the operator", apart(crate::operator::binary)).await?;

        let ours = tools.clone();
        let starting = self.starting.insert(spawn_blocking(move || ControlPlane::builder().start(&ours)));
        let servers = "Starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok";
        let plane = step(servers, async { starting.await? }).await?;
        self.starting = None;
        let plane = &*self.plane.insert(plane);

        let percona = async {
            Percona::define(&plane.client().await?).await?;
            Percona::start(plane).await
        };
        self.percona = Some(step("Starting the Percona operator, whose pods run no PostgreSQL", percona).await?);
        let repository = async { Repository::start() };
        let repository = step("Starting a chart repository: a small chart modelled on Nextcloud's", repository).await?;
        let repository = &*self.repository.insert(repository);

        let kubeconfig = step(
            "Applying manifests/: the CRD, the operator's service account and ClusterRole",
            manifests::install(plane, &tools),
        )
        .await?;
        let home = &*self.home.insert(Home::new()?);
        let surroundings = Surroundings {
            kubeconfig: &kubeconfig,
            helm: &tools.helm,
            chart_repository: &repository.url(),
            lease_namespace: manifests::NAMESPACE,
        };
        let operator = Operator::lead(binary, home, &surroundings);
        self.operator = Some(step("Starting the operator, with no other rights than those", operator).await?);

        let plugin = Operator::plugin(binary, home)?;
        let workspace = manifests::directory();
        let workspace = workspace.parent().context("the manifests are nowhere")?;
        Ok(Stage {
            client: plane.client().await?,
            commands: Commands::new(&tools, &plane.kubeconfig(), workspace, home.path()),
            namespace: "clientapp-samples",
            name: "minimal",
            files: vec!["manifests/samples/namespace.yaml", "manifests/samples/minimal.yaml"],
            timeout: Duration::from_secs(120),
            path: tools.directories().into_iter().map(Path::to_owned).chain([plugin]).collect(),
        })
    }

    fn operator(&mut self) -> Option<&mut Operator> {
        self.operator.as_mut()
    }

    async fn take_down(&mut self) -> Result<()> {
        if let Some(starting) = self.starting.take() {
            drop(starting.await);
        }
        // Drops the fields one after the other, in order.
        *self = Self::default();
        Ok(())
    }
}
