//! Clones: from the subvolume itself, its parent, or any subvolume received before.

use oleo_format::TreeId;
use oleo_format::stream::Command;
use oleo_fs::data::CloneRange;
use oleo_fs::{FsError, InodeRef};
use uuid::Uuid;

use super::super::ApplyError;
use super::batch::check_file;
use super::paths::Finder;
use super::{FsTarget, refused};

/// How many bytes are copied at a time if sharing is not possible.
const COPY_LEN: u64 = 1 << 20;

impl FsTarget {
    pub(super) fn clone_range(&mut self, command: &Command<'_>) -> Result<(), ApplyError> {
        let Command::Clone { path, offset, len, clone_uuid, clone_ctransid, clone_path, clone_offset } = *command
        else {
            return Err(refused("not a clone"));
        };
        let source = self.source(clone_uuid, clone_ctransid, clone_path)?;
        let fs = self.fs.clone();
        let current = self.file(path)?;
        let inode = current.inode.clone();
        if current.buffered {
            fs.flush(&inode)?;
            current.buffered = false;
        }
        self.install_for(&inode)?;
        self.install_for(&source)?;
        let source_attr = fs.attr(&source);
        check_file(source_attr.kind)?;
        let from_end = clone_offset.checked_add(len).filter(|end| *end <= source_attr.size);
        if from_end.is_none() {
            let what = format!("{len} bytes from {clone_offset} on of {} that the source has", source_attr.size);
            return Err(refused(what));
        }
        let end = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok()).ok_or(FsError::FileTooBig)?;
        if len > 0 {
            self.share(&source, &inode, &CloneRange { from: clone_offset, len, to: offset })?;
        }
        let current = self.file(path)?;
        current.size = current.size.max(end);
        current.plain = false;
        Ok(())
    }

    /// Shares a range, or copies it if sectors or flags differ from those of the sender.
    fn share(&mut self, source: &InodeRef, dest: &InodeRef, range: &CloneRange) -> Result<(), ApplyError> {
        match self.fs.clone_range(source, dest, range) {
            Err(FsError::Invalid(_)) => {}
            other => return Ok(other?),
        }
        let mut buffer = vec![0; range.len.min(COPY_LEN) as usize];
        let mut done = 0;
        while done < range.len {
            let len = (range.len - done).min(COPY_LEN) as usize;
            let read = self.fs.read(source, range.from + done, &mut buffer[..len])?;
            if read == 0 {
                return Err(refused("the source ends early"));
            }
            self.fs.write(dest, range.to + done, &buffer[..read])?;
            done += read as u64;
        }
        Ok(self.fs.flush(dest)?)
    }

    /// The file that is cloned from.
    fn source(&mut self, uuid: Uuid, ctransid: u64, path: &[u8]) -> Result<InodeRef, ApplyError> {
        let fs = self.fs.clone();
        let open = self.open()?;
        if uuid == open.uuid {
            return match &open.current {
                Some(current) if current.path == path => Ok(current.inode.clone()),
                _ => open.finder.find(&fs, path),
            };
        }
        if !open.sources.contains_key(&(uuid, ctransid)) {
            let tree = self.source_tree(uuid, ctransid)?;
            let root = fs.root(tree)?;
            self.open()?.sources.insert((uuid, ctransid), Finder::new(root));
        }
        let open = self.open()?;
        let finder = open.sources.get_mut(&(uuid, ctransid)).ok_or(FsError::NotFound)?;
        finder.find_again(&fs, path)
    }

    fn source_tree(&mut self, uuid: Uuid, ctransid: u64) -> Result<TreeId, ApplyError> {
        if let Some((name, tree)) = self.open()?.parent
            && name == uuid
        {
            return Ok(tree);
        }
        self.find_subvol(uuid, ctransid)?
            .ok_or_else(|| refused(format!("there is no subvolume {uuid} (transaction {ctransid}) to clone from")))
    }
}
