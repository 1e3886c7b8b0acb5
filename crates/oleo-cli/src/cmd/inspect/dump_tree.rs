//! `oleo inspect dump-tree`

use oleo::inspect::{Inspector, Step, TreeStart};
use oleo::{ErrorKind, TreeId};
use oleo_format::{CheckedNode, Logical, NodeExpect, print};

use crate::args::ImageArgs;
use crate::out::{Said, misuse, print_or_end, println_or_end};

/// Show the contents of trees
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Only this tree: its ID, or one of root, chunk, extent, dev, fs, csum, uuid, free-space, quota,
    /// block-group, raid-stripe, remap, log, data-reloc.
    #[arg(long, short, value_name = "TREE")]
    tree: Option<String>,
    /// Only the block at this address.
    #[arg(long, short, value_name = "ADDRESS", conflicts_with = "tree")]
    block: Option<u64>,
    /// With --block: also the blocks below it.
    #[arg(long, requires = "block")]
    follow: bool,
    /// Only the addresses of the trees' roots.
    #[arg(long, short)]
    roots: bool,
    /// Print JSON: an array of blocks.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let inspector = self.image.inspect()?;
        let mut shower = TreePrinter { inspector: &inspector, json: self.json, first: true, bad: Vec::new() };
        if self.json {
            println_or_end("[");
        }
        if let Some(address) = self.block {
            let step = if self.follow { Step::Into } else { Step::Over };
            shower.from(NodeExpect::at(Logical(address)), step);
        } else {
            let wanted = self.tree.as_deref().map(tree_of).transpose()?;
            let mut bad = Vec::new();
            let trees = inspector.trees_past(&mut |at, error| bad.push((at, error)));
            // Who looks at the root tree itself is told below.
            if wanted.is_some_and(|wanted| wanted != TreeId::ROOT) || self.roots {
                bad.into_iter().for_each(|(at, error)| shower.bad(at, error));
            }
            for tree in trees.iter().filter(|tree| wanted.is_none_or(|wanted| wanted == tree.tree)) {
                shower.tree(tree, self.roots);
            }
        }
        if self.json {
            println_or_end("\n]");
        } else if self.block.is_none() && self.tree.is_none() {
            let sb = inspector.volume().super_block();
            println_or_end(&format!("total bytes {}", sb.total_bytes));
            println_or_end(&format!("bytes used {}", sb.bytes_used));
            println_or_end(&format!("uuid {}", sb.fsid()));
        }
        match shower.bad.first() {
            Some(kind) => Err(Said(*kind, format!("{} blocks could not be read", shower.bad.len())).into()),
            None => Ok(()),
        }
    }
}

struct TreePrinter<'a> {
    inspector: &'a Inspector,
    json: bool,
    first: bool,
    /// Blocks without a good copy: what was wrong.
    bad: Vec<ErrorKind>,
}

impl TreePrinter<'_> {
    fn tree(&mut self, tree: &TreeStart, roots: bool) {
        if !self.json {
            let title = if tree.tree == TreeId::TREE_LOG && tree.key.is_none() {
                "log root tree"
            } else {
                print::tree_title(tree.tree)
            };
            let key = tree.key.map_or(String::new(), |key| format!(" key {} ", print::key(&key)));
            let place = if roots { format!("{} level {}", tree.root, tree.level) } else { String::new() };
            let gap = if roots && key.is_empty() { " " } else { "" };
            println_or_end(&format!("{title}{key}{gap}{place}"));
        }
        if !roots {
            self.from(tree.expect(), Step::Into);
        } else if self.json {
            self.value(&serde_json::json!({
                "tree": print::json::tree(tree.tree), "root": tree.root.0, "level": tree.level,
                "generation": tree.generation.0,
            }));
        }
    }

    /// Blocks from one on; those that cannot be read are named, and passed over.
    fn from(&mut self, first: NodeExpect, step: Step) {
        let mut bad = Vec::new();
        let inspector = self.inspector;
        inspector.walk_past(
            first,
            |node| {
                self.block(node);
                step
            },
            &mut |at, error| bad.push((at, error)),
        );
        bad.into_iter().for_each(|(at, error)| self.bad(at, error));
    }

    fn bad(&mut self, at: Logical, error: oleo::Error) {
        if self.json {
            self.value(&serde_json::json!({ "bytenr": at.0, "error": error.to_string() }));
        } else {
            eprintln!("oleo: block {at} is passed over: {error}");
        }
        self.bad.push(error.kind());
    }

    fn block(&mut self, node: &CheckedNode) {
        let rules = self.inspector.volume().rules();
        if self.json {
            self.value(&print::json::block(node, rules));
        } else {
            print_or_end(print::block(node, rules).to_string().as_bytes());
        }
    }

    fn value(&mut self, value: &serde_json::Value) {
        let comma = if std::mem::replace(&mut self.first, false) { "" } else { ",\n" };
        print_or_end(format!("{comma}{value:#}").as_bytes());
    }
}

fn tree_of(word: &str) -> anyhow::Result<TreeId> {
    Ok(match word {
        "root" => TreeId::ROOT,
        "chunk" => TreeId::CHUNK,
        "extent" => TreeId::EXTENT,
        "dev" | "device" => TreeId::DEV,
        "fs" => TreeId::FS,
        "csum" | "checksum" => TreeId::CSUM,
        "uuid" => TreeId::UUID,
        "free-space" => TreeId::FREE_SPACE,
        "quota" => TreeId::QUOTA,
        "block-group" => TreeId::BLOCK_GROUP,
        "raid-stripe" => TreeId::RAID_STRIPE,
        "remap" => TreeId::REMAP,
        "log" => TreeId::TREE_LOG,
        "data-reloc" => TreeId::DATA_RELOC,
        _ => match word.parse::<i64>() {
            Ok(number) => TreeId(number.cast_unsigned()),
            Err(_) => TreeId(word.parse::<u64>().map_err(|_| misuse!("there is no tree {word}"))?),
        },
    })
}
