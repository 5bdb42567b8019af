//! The files of the page. Their behaviour is tested in a browser (`cargo xtask ui`).

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::json;

use super::{HttpConfig, Reply, Script, Server};
use crate::http::ApiKeys;
use crate::service::RequestLimits;
use crate::test_support;

async fn get_as(server: &Server, path: &str, accept: &str) -> Reply {
    server.send(Request::get(path).header("accept", accept).body(Body::empty()).unwrap()).await
}

/// Returns the values of `name="…"` in a text.
fn quoted<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.split(&format!("{name}\"")).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[tokio::test]
async fn the_page_is_complete_and_loads_nothing_from_elsewhere() {
    let server = Server::saying("x");
    let page = server.get("/ui/").await;
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let mut wanted: Vec<String> = [quoted(&page.body, "href="), quoted(&page.body, "src=")]
        .concat()
        .into_iter()
        .filter(|link| !link.starts_with('#'))
        .map(|link| link.strip_prefix("../").map_or(format!("/ui/{link}"), |link| format!("/{link}")))
        .collect();
    let mut seen = Vec::new();
    while let Some(path) = wanted.pop() {
        let reply = server.get(&path).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}");
        if seen.contains(&path) || !path.starts_with("/ui/") {
            continue;
        }
        assert!(
            reply.header("content-security-policy").starts_with("default-src 'none'; script-src 'self';")
        );
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
        // Libraries have code that writes HTML, which the page does not call and its policy
        // forbids.
        let is_library = path.starts_with("/ui/vendor/");
        for never in ["innerHTML", "eval(", "//cdn", "@import", "style=\""] {
            assert!(is_library || !reply.body.contains(never), "{path}: {never}");
        }
        if !is_library {
            let imported = [quoted(&reply.body, "from "), quoted(&reply.body, "import(")].concat();
            wanted.extend(imported.iter().map(|file| file.replacen("./", "/ui/", 1)));
        }
        seen.push(path);
    }
    // The page uses every file that is served.
    assert_eq!(seen.len() + 1, crate::web::ui::FILES.len(), "{seen:?}");
}

#[tokio::test]
async fn only_browsers_are_redirected_to_the_page() {
    let server = Server::saying("x");
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    for (path, accept, status) in
        [("/", browser, 303), ("/ui", "*/*", 303), ("/", "*/*", 200), ("/", "application/json", 200)]
    {
        let reply = get_as(&server, path, accept).await;
        assert_eq!(reply.status.as_u16(), status, "{path} {accept}");
        if status == 303 {
            assert_eq!(reply.header("location"), "ui/");
        }
    }
    assert_eq!(server.get("/").await.status, StatusCode::OK);

    let config = HttpConfig { disable_ui: true, ..HttpConfig::default() };
    let server = Server::with(Script::Say("x".into()), 8, config);
    assert_eq!(get_as(&server, "/", browser).await.status, StatusCode::OK);
    for path in ["/ui", "/ui/", "/ui/main.js", "/ui/server.json"] {
        assert_eq!(server.get(path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn server_json_describes_the_server() {
    let facts = Server::saying("x").get("/ui/server.json").await.json();
    let expected = json!({
        "model": "org/model", "version": env!("CARGO_PKG_VERSION"), "has_chat_template": true, "needs_key": false, "grammar": true,
        "max_total_tokens": facts["max_total_tokens"], "max_stop_sequences": 4, "max_top_n_tokens": 5,
    });
    assert_eq!(facts, expected);
    assert!(facts["max_total_tokens"].as_u64().unwrap() > 0);

    let mut assets = test_support::assets();
    assets.text.chat_template = None;
    let config =
        HttpConfig { api_keys: ApiKeys::new(&["k".parse().unwrap()], None), ..HttpConfig::default() };
    let limits = RequestLimits { grammar_support: false, ..RequestLimits::default() };
    let server = Server::serving(&assets, Script::Say("x".into()), limits, config);
    let facts = server.get("/ui/server.json").await.json();
    assert_eq!((&facts["has_chat_template"], &facts["needs_key"]), (&json!(false), &json!(true)));
    assert_eq!(facts["grammar"], false);
}
