//! Requests about properties.

use oleo_fs::{InodeRef, ReadOnly, Received, errno};

use super::{Done, Executor, changed};
use crate::Hint;
use crate::control::caller::{READ, is_subvol_root};
use crate::control::error::Error;
use crate::control::invalidation::Invalidation;
use crate::control::location::Location;
use crate::control::reply::Reply;
use crate::control::request::Property;
use crate::fs::PROPERTIES;

impl Executor<'_> {
    pub(super) fn properties(&self, at: &Location, name: Option<&str>) -> Result<Vec<Property>, Error> {
        let inode = self.find(at)?;
        self.caller.must_have(self.image.fs(), &inode, READ)?;
        let names = name.map_or_else(|| PROPERTIES.iter().map(|(name, _)| *name).collect(), |name| vec![name]);
        let mut found = Vec::new();
        for name in names {
            if let Some(value) = self.image.property(&inode, name)? {
                found.push(Property { name: name.to_owned(), value });
            }
        }
        Ok(found)
    }

    pub(super) fn set_property(&self, at: &Location, property: &Property, force: bool) -> Result<Done, Error> {
        let fs = self.image.fs();
        let inode = self.find(at)?;
        if property.name == "label" {
            self.caller.must_be_privileged("change the label")?;
        } else {
            self.caller.must_own(&fs.attr(&inode))?;
        }
        if property.name == "ro" && property.value == "false" && is_subvol_root(&inode) {
            self.forget_received(&inode, force)?;
        }
        self.image.set_property(&inode, &property.name, &property.value)?;
        if property.name == "label" {
            fs.commit()?;
        }
        changed(Reply::Done, vec![Invalidation::Inode { tree: inode.tree(), ino: inode.ino() }])
    }

    /// What becomes writable is no longer what was received: the next incremental send would build on a lie.
    fn forget_received(&self, root: &InodeRef, force: bool) -> Result<(), Error> {
        let fs = self.image.fs();
        if fs.subvol_info(root.tree())?.received_uuid.is_nil() {
            return Ok(());
        }
        if !force {
            let mut error = Error::refused(errno::EPERM, "it was received, and incremental receives build on it");
            error.hint = Some(Hint::WriteToSnapshot);
            return Err(error);
        }
        fs.set_read_only(root.tree(), ReadOnly::No)?;
        Ok(fs.set_received(root.tree(), &Received::default())?)
    }
}
