//! A superblock as text: one field a line, its name, tabs, its value.

use std::fmt::{self, Display, Write};

use uuid::Uuid;
use zerocopy::IntoBytes;

use super::{Shown, items, key, text};
use crate::csum::CSUM_FIELD_LEN;
use crate::error::Hex;
use crate::flags::{CompatRo, Incompat, SuperFlags};
use crate::structs::{RootBackup, SuperBlock};
use crate::super_block::SUPER_MAGIC;

/// All of a superblock, with `full` also system chunks and backup roots. Checksum and magic are compared, never believed.
pub fn super_block(sb: &SuperBlock, full: bool) -> impl Display + '_ {
    Shown(move |f: &mut fmt::Formatter<'_>| {
        head(f, sb)?;
        counts(f, sb)?;
        features(f, sb)?;
        device(f, sb)?;
        if full { lists(f, sb) } else { Ok(()) }
    })
}

/// One line. Names shorter than a tab stop get one tab more, so that values are aligned.
fn line(f: &mut impl Write, name: &str, value: impl Display) -> fmt::Result {
    let tabs = if name.len() < 8 {
        "\t\t\t"
    } else if name.len() < 16 {
        "\t\t"
    } else {
        "\t"
    };
    writeln!(f, "{name}{tabs}{value}")
}

fn verified(ok: bool) -> &'static str {
    if ok { "[match]" } else { "[DON'T MATCH]" }
}

fn head(f: &mut impl Write, sb: &SuperBlock) -> fmt::Result {
    match sb.csum() {
        Ok(csum) => {
            let want = csum.csum(&sb.as_bytes()[CSUM_FIELD_LEN..]);
            let have = &sb.csum[..csum.csum_len()];
            line(f, "csum_type", format_args!("{} ({csum})", sb.csum_type))?;
            line(f, "csum_size", csum.csum_len())?;
            line(f, "csum", format_args!("{} {}", Hex(have), verified(have == &want[..csum.csum_len()])))?;
        }
        Err(_) => line(f, "csum_type", format_args!("{} (unknown)", sb.csum_type))?,
    }
    line(f, "bytenr", sb.bytenr)?;
    line(f, "flags", format_args!("{:#x}", sb.flags.get()))?;
    let flags = SuperFlags::from_bits_retain(sb.flags.get());
    names(f, flags.iter_names().map(|(name, _)| name))?;
    line(f, "magic", format_args!("{} {}", sb.magic.escape_ascii(), verified(sb.magic == SUPER_MAGIC)))?;
    line(f, "fsid", sb.fsid())?;
    line(f, "metadata_uuid", sb.metadata_fsid())?;
    line(f, "label", text(sb.label()))
}

/// Names of set bits, one a line, in brackets.
fn names(f: &mut impl Write, names: impl Iterator<Item = &'static str>) -> fmt::Result {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { Ok(()) } else { writeln!(f, "\t\t\t( {} )", names.join(" |\n\t\t\t  ")) }
}

fn counts(f: &mut impl Write, sb: &SuperBlock) -> fmt::Result {
    line(f, "generation", sb.generation)?;
    line(f, "root", sb.root)?;
    line(f, "sys_array_size", sb.sys_chunk_array_size)?;
    line(f, "chunk_root_generation", sb.chunk_root_generation)?;
    line(f, "root_level", sb.root_level)?;
    line(f, "chunk_root", sb.chunk_root)?;
    line(f, "chunk_root_level", sb.chunk_root_level)?;
    line(f, "log_root", sb.log_root)?;
    line(f, "log_root_transid (deprecated)", sb.__unused_log_root_transid)?;
    line(f, "log_root_level", sb.log_root_level)?;
    line(f, "total_bytes", sb.total_bytes)?;
    line(f, "bytes_used", sb.bytes_used)?;
    line(f, "sectorsize", sb.sectorsize)?;
    line(f, "nodesize", sb.nodesize)?;
    line(f, "leafsize (deprecated)", sb.__unused_leafsize)?;
    line(f, "stripesize", sb.stripesize)?;
    line(f, "root_dir", sb.root_dir_objectid)?;
    line(f, "num_devices", sb.num_devices)
}

fn features(f: &mut impl Write, sb: &SuperBlock) -> fmt::Result {
    line(f, "compat_flags", format_args!("{:#x}", sb.compat_flags.get()))?;
    line(f, "compat_ro_flags", format_args!("{:#x}", sb.compat_ro_flags.get()))?;
    let compat_ro = CompatRo::from_bits_retain(sb.compat_ro_flags.get());
    names(f, compat_ro.iter_names().map(|(name, _)| name))?;
    line(f, "incompat_flags", format_args!("{:#x}", sb.incompat_flags.get()))?;
    let incompat = Incompat::from_bits_retain(sb.incompat_flags.get());
    names(f, incompat.iter_names().map(|(name, _)| name))?;
    line(f, "cache_generation", sb.cache_generation)?;
    line(f, "uuid_tree_generation", sb.uuid_tree_generation)?;
    if let Some((root, generation, level)) = sb.remap_tree() {
        line(f, "remap_root", root)?;
        line(f, "remap_root_generation", generation)?;
        line(f, "remap_root_level", level)?;
    }
    Ok(())
}

fn device(f: &mut impl Write, sb: &SuperBlock) -> fmt::Result {
    let d = &sb.dev_item;
    let fsid = Uuid::from_bytes(d.fsid);
    line(f, "dev_item.uuid", Uuid::from_bytes(d.uuid))?;
    line(f, "dev_item.fsid", format_args!("{fsid} {}", verified(fsid == sb.metadata_fsid())))?;
    line(f, "dev_item.type", d.r#type)?;
    line(f, "dev_item.total_bytes", d.total_bytes)?;
    line(f, "dev_item.bytes_used", d.bytes_used)?;
    line(f, "dev_item.io_align", d.io_align)?;
    line(f, "dev_item.io_width", d.io_width)?;
    line(f, "dev_item.sector_size", d.sector_size)?;
    line(f, "dev_item.devid", d.devid)?;
    line(f, "dev_item.dev_group", d.dev_group)?;
    line(f, "dev_item.seek_speed", d.seek_speed)?;
    line(f, "dev_item.bandwidth", d.bandwidth)?;
    line(f, "dev_item.generation", d.generation)
}

fn lists(f: &mut impl Write, sb: &SuperBlock) -> fmt::Result {
    writeln!(f, "sys_chunk_array[2048]:")?;
    match sb.parse_sys_chunks() {
        Ok(chunks) => {
            for (i, (k, chunk)) in chunks.iter().enumerate() {
                writeln!(f, "\titem {i} key {}", key(k))?;
                for line in items::chunk(chunk) {
                    writeln!(f, "\t\t{line}")?;
                }
            }
        }
        Err(e) => writeln!(f, "\terror: {e}")?,
    }
    writeln!(f, "backup_roots[4]:")?;
    for (i, b) in sb.super_roots.iter().enumerate() {
        writeln!(f, "\tbackup {i}:")?;
        backup(f, b)?;
        writeln!(f)?;
    }
    Ok(())
}

fn backup(f: &mut impl Write, b: &RootBackup) -> fmt::Result {
    for (name, at, generation, level) in [
        ("backup_tree_root:\t", b.tree_root, b.tree_root_gen, b.tree_root_level),
        ("backup_chunk_root:\t", b.chunk_root, b.chunk_root_gen, b.chunk_root_level),
        ("backup_extent_root:\t", b.extent_root, b.extent_root_gen, b.extent_root_level),
        ("backup_fs_root:\t\t", b.fs_root, b.fs_root_gen, b.fs_root_level),
        ("backup_dev_root:\t", b.dev_root, b.dev_root_gen, b.dev_root_level),
        ("csum_root:\t", b.csum_root, b.csum_root_gen, b.csum_root_level),
    ] {
        writeln!(f, "\t\t{name}{at}\tgen: {generation}\tlevel: {level}")?;
    }
    writeln!(f, "\t\tbackup_total_bytes:\t{}", b.total_bytes)?;
    writeln!(f, "\t\tbackup_bytes_used:\t{}", b.bytes_used)?;
    writeln!(f, "\t\tbackup_num_devices:\t{}", b.num_devices)
}
