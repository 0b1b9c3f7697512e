//! Limits for each caller: requests per second, and bytes per request.

use std::{hash::Hash, net::IpAddr, num::NonZeroU32, time::Duration};

use axum::{
    body::{Body, BodyDataStream, Bytes},
    http::{Request, StatusCode, header},
};
use futures::StreamExt as _;
use governor::{
    DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
};

use super::problem::Problem;

/// Maximum size of a body. A request describes one instance.
const BODY: usize = 64 << 10;
/// How much of an oversized body is read and discarded: a client that is still sending would not see the response.
const DISCARD: usize = 8 << 20;
/// Timeout for receiving a whole body.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(10);

/// Requests of one user, per second and in a burst.
const USER: Quota = quota(100, 400);
/// Requests of one address without a known user; each costs the API server a TokenReview.
const UNAUTHENTICATED: Quota = quota(50, 200);
/// Callers to remember before inactive ones are forgotten.
const REMEMBERED: usize = 10_000;

/// A rate limit for each caller.
pub(crate) struct Limit<K: Eq + Hash + Clone> {
    requests: DefaultKeyedRateLimiter<K>,
    whose: &'static str,
}

/// By user; a busy client stays far below it.
pub(crate) fn for_users() -> Limit<String> {
    Limit::new(USER, "this user")
}

/// By address, grouped by [`network`]: for requests without a known user.
pub(crate) fn for_unauthenticated() -> Limit<IpAddr> {
    Limit::new(UNAUTHENTICATED, "this address without a valid token")
}

/// A client with one IPv6 address has its whole /64.
pub(crate) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::from((address.to_bits() & !u128::from(u64::MAX)).to_be_bytes()),
        v4 => v4,
    }
}

const fn quota(per_second: u32, burst: u32) -> Quota {
    Quota::per_second(NonZeroU32::new(per_second).unwrap()).allow_burst(NonZeroU32::new(burst).unwrap())
}

impl<K: Eq + Hash + Clone> Limit<K> {
    fn new(quota: Quota, whose: &'static str) -> Self {
        Limit { requests: RateLimiter::keyed(quota), whose }
    }

    /// Counts a request; 429 if it exceeds the limit.
    pub(crate) fn check(&self, key: &K) -> Result<(), Problem> {
        if self.requests.len() > REMEMBERED {
            self.requests.retain_recent();
        }
        self.requests.check_key(key).map_err(|refused| {
            let wait = refused.wait_time_from(DefaultClock::default().now());
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            let detail = format!("Too many requests from {}: wait {seconds} s.", self.whose);
            Problem::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", detail).retry_after(seconds)
        })
    }
}

/// Reads the whole body, so that no route waits for a slow sender. 413 if the body is too large, 408 if it does not arrive in time,
/// 400 if it ends early.
pub(crate) async fn with_whole_body(request: Request<Body>, time: Duration) -> Result<Request<Body>, Problem> {
    let (parts, body) = request.into_parts();
    // With `Expect: 100-continue`, the client is waiting for the response before it sends.
    let discard = if parts.headers.contains_key(header::EXPECT) { 0 } else { DISCARD };
    let announced = parts.headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let read = async {
        if announced.is_some_and(|length| length > BODY) && discard == 0 {
            return Err(too_large());
        }
        whole(body.into_data_stream(), discard).await
    };
    let bytes = tokio::time::timeout(time, read).await.map_err(|_| {
        let detail = format!("The body of the request did not arrive within {time:?}.");
        Problem::new(StatusCode::REQUEST_TIMEOUT, "Timeout", detail)
    })?;
    Ok(Request::from_parts(parts, Body::from(bytes?)))
}

async fn whole(mut stream: BodyDataStream, discard: usize) -> Result<Bytes, Problem> {
    let (mut bytes, mut length) = (Vec::new(), 0usize);
    while let Some(chunk) = stream.next().await {
        let ended = |_| Problem::new(StatusCode::BAD_REQUEST, "Malformed", "The body of the request ended early.");
        let chunk = chunk.map_err(ended)?;
        length = length.saturating_add(chunk.len());
        if length <= BODY {
            bytes.extend_from_slice(&chunk);
        } else if length > discard {
            break;
        }
    }
    if length > BODY { Err(too_large()) } else { Ok(bytes.into()) }
}

fn too_large() -> Problem {
    let detail = format!("The body of the request is larger than {} KiB.", BODY >> 10);
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "PayloadTooLarge", detail)
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;

    #[test]
    fn one_too_many_is_told_when_to_come_back_and_others_go_on() {
        let limit = Limit::new(Quota::per_hour(NonZeroU32::MIN).allow_burst(NonZeroU32::new(3).unwrap()), "this user");
        for _ in 0..3 {
            assert_eq!(limit.check(&"jane"), Ok(()));
        }
        let problem = limit.check(&"jane").unwrap_err();
        assert_eq!(problem.status(), StatusCode::TOO_MANY_REQUESTS);
        let answer = problem.into_response();
        let seconds: u64 = answer.headers()[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
        assert!((1..=3600).contains(&seconds), "{seconds}");
        assert_eq!(limit.check(&"john"), Ok(()));
    }

    #[test]
    fn a_network_is_one_address_or_a_64() {
        let of = |address: &str| network(address.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.1"), "192.0.2.1");
        assert_eq!(of("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_the_limit() {
        let read =
            async |body: Body| with_whole_body(Request::new(body), BODY_TIME).await.map_err(|problem| problem.status());
        let chunks = |count: usize| {
            let chunks = (0..count).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 1 << 10]));
            Body::from_stream(futures::stream::iter(chunks))
        };
        for body in [Body::from(vec![b'x'; BODY]), chunks(BODY >> 10)] {
            let whole = read(body).await.unwrap().into_body();
            assert_eq!(axum::body::to_bytes(whole, usize::MAX).await.unwrap().len(), BODY);
        }
        let endless = Body::from_stream(futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b'x'; 1 << 10])));
        for body in [Body::from(vec![b'x'; BODY + 1]), chunks((BODY >> 10) + 1), endless] {
            assert_eq!(read(body).await.unwrap_err(), StatusCode::PAYLOAD_TOO_LARGE);
        }
        let broken = futures::stream::iter([Ok(vec![b'x']), Err(std::io::Error::other("gone"))]);
        assert_eq!(read(Body::from_stream(broken)).await.unwrap_err(), StatusCode::BAD_REQUEST);
    }
}
