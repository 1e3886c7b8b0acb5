//! The list of subvolumes and snapshots.

use std::collections::HashMap;

use oleo_fs::Fs;
use serde_json::{Value, json};

use crate::name_text;
use crate::query::encoded;
use crate::refused::Unread;
use crate::reply::Reply;

/// Subvolumes that are listed.
const LISTED_MAX: usize = 10_000;

pub(crate) fn subvolumes(fs: &Fs) -> Result<Reply, Unread> {
    let list = fs.subvol_list()?;
    let by_uuid: HashMap<_, _> =
        list.iter().rev().filter(|info| !info.uuid.is_nil()).map(|info| (info.uuid, info.id.0)).collect();
    let shown: Vec<Value> = list
        .iter()
        .take(LISTED_MAX)
        .map(|info| {
            json!({
                "id": info.id.0,
                "path": name_text(&info.path),
                "raw": encoded(&info.path),
                "read_only": info.read_only,
                "generation": info.generation,
                "made": info.otime.sec,
                "snapshot_of": by_uuid.get(&info.parent_uuid),
            })
        })
        .collect();
    Ok(Reply::json(&json!({ "subvolumes": shown, "left_out": list.len().saturating_sub(LISTED_MAX) })))
}
