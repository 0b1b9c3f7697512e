//! A network that admits a new pod only after a moment, or never.

use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;

/// Says what becomes of a new pod's first connections.
#[derive(Clone, Copy)]
pub enum Lag {
    Refused,
    /// The packets are lost: neither an answer nor an error.
    Dropped,
}

/// A listener that carries connections to a server, except for the first ones.
pub struct Network {
    pub port: u16,
    seen: Arc<AtomicUsize>,
}

impl Network {
    pub fn to(server: u16, lag: &'static [Lag]) -> Network {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&seen);
        thread::spawn(move || {
            let mut dropped = Vec::new();
            for client in listener.incoming().map_while(Result::ok) {
                match lag.get(counted.fetch_add(1, Ordering::SeqCst)) {
                    Some(Lag::Refused) => drop(client),
                    Some(Lag::Dropped) => dropped.push(client),
                    None => {
                        // As the kernel does when nothing listens.
                        let Ok(to) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                        carry(&client, &to);
                        carry(&to, &client);
                    }
                }
            }
        });
        Network { port, seen }
    }

    fn connections(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }
}

fn carry(from: &TcpStream, to: &TcpStream) {
    let [mut from, mut to] = [from, to].map(|stream| stream.try_clone().unwrap());
    thread::spawn(move || {
        let _ = copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
}

#[test]
fn a_server_that_is_closed_is_dumped_by_a_network_that_needs_a_moment() {
    const LAG: &[Lag] = &[Lag::Refused, Lag::Dropped, Lag::Refused];
    let node = node();
    with_database(&node, "data", 0);
    node.volume("dumps").unwrap();
    let mut server = Server::primary(&node, "data", "closed.conf", "");
    server.sql("postgres", "ALTER ROLE shop SUPERUSER");
    let refused = server.over_tcp("shop", PASSWORD, "orders", "SELECT").unwrap_err();
    assert!(refused.contains("pg_hba.conf rejects"), "{refused}");
    let network = Network::to(server.port, LAG);
    let mut dump = server.dump("x-a");
    dump.env("PGPORT", network.port.to_string());
    succeeds(dump);
    assert!(network.connections() > LAG.len());
    assert_eq!(files(&node.path("dumps")).len(), 1);
    server.stop();

    // It gives up on a server that never answers, and repeats the reason.
    node.replace("timeout", "shift; exec $REAL 1 \"$@\"").unwrap();
    let (code, words) = fails(server.dump("x-b"));
    assert_eq!(code, Some(2), "{words}");
    let last = words.lines().rev().find(|line| line.contains("error: ")).unwrap_or_default();
    assert!(words.contains("127.0.0.1 does not accept connections") && last.contains("Connection refused"), "{words}");
    assert_eq!(files(&node.path("dumps")).len(), 1);
}

#[test]
fn a_dump_that_waits_for_the_server_ends_when_it_is_stopped() {
    let node = node();
    with_database(&node, "data", 0);
    node.volume("dumps").unwrap();
    let network = Network::to(0, &[]);
    let server = Server { node: &node, pod: None, volume: "data".to_owned(), port: network.port };
    let mut pod = node.start(server.dump("x-a"), "dump.log").unwrap();
    blocking_until("it waits", || network.connections() > 1);
    pod.terminate().unwrap();
    assert_eq!(pod.wait().unwrap(), Some(143));
    assert!(files(&node.path("dumps")).is_empty());
}
