//! `oleo inspect tree-stats`

use oleo::TreeId;
use oleo::inspect::TreeStats;

use crate::args::ImageArgs;
use crate::out::{human, json, println_or_end};

/// Count the blocks of trees and show how scattered they are
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Only the tree with this ID.
    #[arg(long, short, value_name = "ID")]
    tree: Option<u64>,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let inspector = self.image.inspect()?;
        let mut all = Vec::new();
        for tree in inspector.trees()? {
            if self.tree.is_some_and(|wanted| TreeId(wanted) != tree.tree) {
                continue;
            }
            let stats = inspector.stats(&tree)?;
            if self.json {
                all.push(as_json(tree.tree, &stats));
            } else {
                show(tree.tree, &stats);
            }
        }
        if self.json {
            json(&all.into());
        }
        Ok(())
    }
}

fn show(tree: TreeId, stats: &TreeStats) {
    let blocks: u64 = stats.blocks.iter().sum();
    println_or_end(&format!("Tree {tree}"));
    println_or_end(&format!("\tTotal size: {}", human(stats.bytes)));
    for (level, count) in stats.blocks.iter().enumerate() {
        println_or_end(&format!("\tLevel {level} blocks: {count}"));
    }
    println_or_end(&format!("\tItems: {}", stats.items));
    println_or_end(&format!("\tFree in leaves: {}", human(stats.free_bytes)));
    println_or_end(&format!("\tTotal seeks: {} of {}", stats.seeks, blocks.saturating_sub(1)));
    if let Some(average) = stats.seek_bytes.checked_div(stats.seeks) {
        println_or_end(&format!("\tAverage seek: {}", human(average)));
    }
    if let Some((low, high)) = stats.span {
        println_or_end(&format!("\tSpread: {}", human(high.0 - low.0)));
    }
}

fn as_json(tree: TreeId, stats: &TreeStats) -> serde_json::Value {
    serde_json::json!({
        "tree": tree.0,
        "bytes": stats.bytes,
        "blocks_by_level": stats.blocks,
        "items": stats.items,
        "free_bytes": stats.free_bytes,
        "seeks": stats.seeks,
        "seek_bytes": stats.seek_bytes,
        "first_block": stats.span.map(|(low, _)| low.0),
        "last_block": stats.span.map(|(_, high)| high.0),
    })
}
