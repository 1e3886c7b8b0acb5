//! What each address stands for.

use std::sync::Arc;

use hyper::header;
use oleo::control::{Reply as Replied, Request};
use oleo_browse::{Query, Refused, assets};
use serde_json::{Value, json};

use super::files;
use super::reply::Reply;
use super::volume::{Current, refused};
use crate::{answers, name_text};

/// The policy of maps, which have a style sheet inside.
const MAP_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Answers a request for a path behind the token.
pub(super) fn answer(volume: &Arc<Current>, path: &str, query: &str) -> Result<Reply, Refused> {
    let query = Query(query);
    match path {
        "" => Ok(Reply::whole("text/html; charset=utf-8", assets::PAGE)),
        "app.js" => Ok(Reply::whole("text/javascript; charset=utf-8", assets::SCRIPT)),
        "app.css" => Ok(Reply::whole("text/css; charset=utf-8", assets::STYLE)),
        "icon.svg" => Ok(Reply::whole("image/svg+xml", assets::ICON)),
        "api/info" => info(volume),
        "api/live" => Ok(live(volume)),
        "file" => files::download(volume, &query),
        "tar" => Ok(Reply::of(volume.read(|image| answers::tar(image, &query))?)),
        "api/check" => check(volume, &query),
        _ => {
            if let Some(map) = answers::map(path, || volume.map()) {
                return Ok(Reply::of(map?).with(header::CONTENT_SECURITY_POLICY, MAP_POLICY));
            }
            let missing = || Err(Refused { status: 404, why: "there is nothing at this address".into() }.into());
            let reply = volume.read(|image| oleo_browse::answer(image.fs(), path, &query).unwrap_or_else(missing))?;
            Ok(Reply::of(reply))
        }
    }
}

/// What is mounted is not checked from outside: half of what is read would have been overwritten meanwhile.
fn check(volume: &Arc<Current>, query: &Query<'_>) -> Result<Reply, Refused> {
    let data = query.number("data", 0)? != 0;
    if volume.target.mount.is_some() {
        let why = "the volume is mounted: `oleo scrub` on the mount reads and compares everything while it is in use";
        return Err(Refused { status: 409, why: why.into() });
    }
    // As far as that can be told now: of two that begin together one waits for the other.
    if volume.is_checking() {
        return Err(Refused { status: 409, why: "a check is running already".into() });
    }
    Ok(Reply::of(answers::check(volume.clone(), data)))
}

fn info(volume: &Current) -> Result<Reply, Refused> {
    let image = volume.image().map_err(refused)?;
    let sb = image.volume().super_block();
    let space = image.space_summary();
    Ok(Reply::json(&json!({
        "label": name_text(sb.label()),
        "uuid": sb.fsid().to_string(),
        "generation": sb.generation.get(),
        "total": space.total.0,
        "available": space.available.0,
        "devices": image.volume().devices().len(),
        "mounted": volume.target.mount.is_some(),
        "offers": ["tar", "check", "maps"],
    })))
}

/// What a mount is doing.
fn live(volume: &Current) -> Reply {
    let Some(ask) = &volume.target.mount else { return Reply::json(&json!({ "mounted": false })) };
    let generation = volume.image().map(|image| image.volume().super_block().generation.get()).ok();
    let balance = match ask(Request::BalanceStatus) {
        Ok(Replied::Balance(status)) => serde_json::to_value(&*status).unwrap_or(Value::Null),
        _ => Value::Null,
    };
    let usage = match ask(Request::Usage) {
        Ok(Replied::Usage(usage)) => usage
            .groups
            .iter()
            .map(|group| json!({ "type": group.kind, "profile": group.profile, "total": group.total, "used": group.used }))
            .collect(),
        _ => Vec::new(),
    };
    let errors = match ask(Request::DeviceErrors { reset: false, only: None }) {
        Ok(Replied::DeviceErrors(errors)) => serde_json::to_value(errors).unwrap_or(Value::Null),
        _ => Value::Null,
    };
    Reply::json(
        &json!({ "mounted": true, "generation": generation, "balance": balance, "groups": usage, "errors": errors }),
    )
}
