//! Binds the listeners for other machines.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use nix::errno::Errno;
use tokio::net::TcpListener;

/// Binds an address. Clients reach `[::]` over IPv4, too; on a machine without IPv6 it is `0.0.0.0`.
pub(crate) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) => TcpListener::bind(without_ipv6(address, &error).ok_or(error)?).await,
        bound => bound,
    }
}

/// Returns the address to bind instead, if the error says that this machine has no IPv6.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let has_none = error.raw_os_error().map(Errno::from_raw) == Some(Errno::EAFNOSUPPORT);
    (has_none && address.ip() == Ipv6Addr::UNSPECIFIED).then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listener_for_all_addresses_is_reached_over_ipv4() {
        let listener = bind("[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (connected, accepted) =
            tokio::join!(tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)), listener.accept());
        let (_, from) = accepted.unwrap();
        assert_eq!(from.ip().to_canonical(), connected.unwrap().local_addr().unwrap().ip());
    }

    #[test]
    fn only_a_machine_without_ipv6_takes_ipv4_instead() {
        for (address, error, instead) in [
            ("[::]:8080", Errno::EAFNOSUPPORT, Some("0.0.0.0:8080")),
            ("[::]:8080", Errno::EADDRINUSE, None),
            ("[::1]:8080", Errno::EAFNOSUPPORT, None),
            ("0.0.0.0:8080", Errno::EAFNOSUPPORT, None),
        ] {
            let found = without_ipv6(address.parse().unwrap(), &io::Error::from(error));
            assert_eq!(found, instead.map(|address| address.parse().unwrap()), "{address} {error}");
        }
    }
}
