//! `oleo subvolume`

mod create;
mod default;
mod delete;
mod find_new;
mod list;
mod show;
mod snapshot;
mod sync;

use crate::out::Out;

/// Manage subvolumes and snapshots
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    List(list::Args),
    Show(show::Args),
    Create(create::Args),
    Snapshot(snapshot::Args),
    Delete(delete::Args),
    SetDefault(default::Set),
    GetDefault(default::Get),
    FindNew(find_new::Args),
    Sync(sync::Args),
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::List(args) => args.run(),
            Command::Show(args) => args.run(),
            Command::Create(args) => args.run(out),
            Command::Snapshot(args) => args.run(out),
            Command::Delete(args) => args.run(out),
            Command::SetDefault(args) => args.run(out),
            Command::GetDefault(args) => args.run(),
            Command::FindNew(args) => args.run(),
            Command::Sync(args) => args.run(out),
        }
    }
}

/// What is known of a subvolume, as JSON.
fn as_json(info: &oleo::control::Subvol) -> serde_json::Value {
    use crate::out::{text, uuid_or_dash};
    serde_json::json!({
        "id": info.id.0,
        "parent": info.parent.map(|id| id.0),
        "path": text(&info.path.0),
        "generation": info.generation,
        "generation_at_creation": info.otransid,
        "read_only": info.read_only,
        "uuid": uuid_or_dash(info.uuid),
        "parent_uuid": uuid_or_dash(info.parent_uuid),
        "received_uuid": uuid_or_dash(info.received_uuid),
        "created": info.otime.0,
        "send_transid": info.stransid,
        "send_time": info.stime.0,
        "receive_transid": info.rtransid,
        "receive_time": info.rtime.0,
    })
}
