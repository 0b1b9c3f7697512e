//! The page at `/`: an ordinary client of the JSON API, made of files in the binary.

use axum::{
    Router,
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use sha2::{Digest as _, Sha256};

use crate::platform::key::hex;

/// The files of the page: route, content type, content.
const FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/page/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page/page.js", JAVASCRIPT, include_str!("page/page.js")),
    ("/page/api.js", JAVASCRIPT, include_str!("page/api.js")),
    ("/page/backups.js", JAVASCRIPT, include_str!("page/backups.js")),
    ("/page/detail.js", JAVASCRIPT, include_str!("page/detail.js")),
    ("/page/forms.js", JAVASCRIPT, include_str!("page/forms.js")),
    ("/page/list.js", JAVASCRIPT, include_str!("page/list.js")),
    ("/page/view.js", JAVASCRIPT, include_str!("page/view.js")),
];
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// The page runs only its own files and connects only to its own API. Trusted Types keep scripts from writing HTML, so text never
/// becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    // Browsers revalidate each time (304), so the page is never older than the operator.
    (header::CACHE_CONTROL, "no-cache"),
];

/// The routes of the page. Its files are public: they contain no data of the cluster.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, &(path, content_type, content)| {
        // A strong ETag: every replica sends the same one for the same content.
        let tag = format!("\"{}\"", hex(&Sha256::digest(content)[..16]));
        router.route(path, get(async move |headers: HeaderMap| file(&headers, &tag, content_type, content)))
    })
}

fn file(asked: &HeaderMap, tag: &str, content_type: &'static str, content: &'static str) -> Response {
    let known = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
    let known = known.flat_map(|tags| tags.split(',')).map(|known| known.trim().trim_start_matches("W/"));
    let tagged = [(header::ETAG, tag.to_owned())];
    if known.into_iter().any(|known| known == tag || known == "*") {
        return (StatusCode::NOT_MODIFIED, HEADERS, tagged).into_response();
    }
    (HEADERS, tagged, [(header::CONTENT_TYPE, content_type)], content).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::{body::Body, http::Request};
    use tower::ServiceExt as _;

    use super::*;

    async fn answer(path: &str, known: &str) -> Response {
        let request = Request::get(path).header(header::IF_NONE_MATCH, known).body(Body::empty()).unwrap();
        routes::<()>().oneshot(request).await.unwrap()
    }

    #[tokio::test]
    async fn files_are_sent_once() {
        for (path, content_type, content) in FILES {
            let first = answer(path, "\"other\"").await;
            assert_eq!(
                (first.status(), &first.headers()[header::CONTENT_TYPE]),
                (StatusCode::OK, &(*content_type).parse().unwrap())
            );
            let tag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
            assert_eq!(axum::body::to_bytes(first.into_body(), usize::MAX).await.unwrap(), content.as_bytes());
            for known in [tag.clone(), format!("\"other\", W/{tag}")] {
                let again = answer(path, &known).await;
                assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path} {known}");
                assert_eq!(again.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
            }
        }
        assert_eq!(answer("/page/none.js", "").await.status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn every_file_beside_the_page_is_served() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/api/page");
        let there: BTreeSet<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .map(|name| if name == "index.html" { "/".to_owned() } else { format!("/page/{name}") })
            .collect();
        assert_eq!(there, FILES.iter().map(|(path, ..)| (*path).to_owned()).collect());
    }

    #[test]
    fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
        for (path, _, content) in FILES {
            // The SVG namespace is a name, not an address.
            let text = content.replace("http://www.w3.org/2000/svg", "");
            for banned in ["http://", "<style", " style=", " onclick=", " onload=", "insertAdjacentHTML", "eval("] {
                assert!(!text.contains(banned), "{banned} is in {path}");
            }
        }
    }
}
