//! Shared by the end-to-end tests and the demonstration of the ClientApp operator: a real local control plane, and
//! stand-ins for the rest of a cluster.

pub mod arguments;
pub mod background;
pub mod bench;
pub mod cache;
pub mod cert_manager;
pub mod charts;
pub mod cloudnativepg;
pub mod conformance;
pub mod demo;
pub mod detached;
pub mod digest;

pub mod front;
pub mod helm;
pub mod image;
pub mod lab;

pub mod manifests;
pub mod nightly;
pub mod node;
pub mod objects;
pub mod operator;
pub mod percona;
pub mod plane;
pub mod postgres;
pub mod progress;
pub mod prometheus;
pub mod protocol;
pub mod proxy;
pub mod random;
pub mod registry;
pub mod release;
pub mod repository;
pub mod scenario;
pub mod shim;

pub mod tail;
pub mod tools;
pub mod wait;
pub mod worker;
