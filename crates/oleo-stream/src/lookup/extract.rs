//! What is found comes out: a file as bytes, or a tree as a stream of its own, which any receiver takes.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use oleo_format::Timespec;
use oleo_format::stream::{self, Command};
use uuid::Uuid;

use super::chain::{Chain, Found, Inode, PATH_LEN_MAX};
use super::model::{Change, FileType, NodeId, Origin, join};
use super::{LookupError, Places, shown, wrong};

/// The version of the streams that are made.
const VERSION: u32 = 2;
/// Most data in one command.
const WRITE_LEN: usize = 128 << 10;
/// Zeros that are written in one piece.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// What came out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Extracted {
    /// Files.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
    /// Links, devices, pipes and sockets.
    pub others: u64,
    /// Bytes of contents.
    pub data_bytes: u64,
}

/// Attributes as the streams leave them.
#[derive(Default)]
struct Attrs {
    mode: Option<u64>,
    owner: Option<(u64, u64)>,
    times: Option<[Timespec; 3]>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct Out<'o> {
    to: &'o mut dyn Write,
    bytes: Vec<u8>,
}

impl Out<'_> {
    fn command(&mut self, command: &Command<'_>) -> Result<(), LookupError> {
        self.bytes.clear();
        command.encode(VERSION, &mut self.bytes);
        self.to.write_all(&self.bytes).map_err(LookupError::Output)
    }
}

impl Chain {
    /// Writes the contents of a file.
    ///
    /// # Errors
    /// It is no file, it cannot be read, or the output cannot be written.
    pub fn cat(&self, found: &Found, places: &mut dyn Places, to: &mut dyn Write) -> Result<(), LookupError> {
        if found.kind != FileType::File {
            return Err(LookupError::Type("what the path leads to".into(), "file"));
        }
        let mut at = 0;
        for piece in self.pieces(&found.inode)? {
            zeros(piece.at - at, to)?;
            self.read_piece(&piece, places, &mut |_, bytes| to.write_all(bytes).map_err(LookupError::Output))?;
            at = piece.at + piece.len;
        }
        zeros(found.size - at, to)?;
        to.flush().map_err(LookupError::Output)
    }

    /// Where a symbolic link points to.
    ///
    /// # Errors
    /// It is none, or cannot be read.
    pub fn link_target(&self, found: &Found, places: &mut dyn Places) -> Result<Vec<u8>, LookupError> {
        let mut out = None;
        self.made_by(&found.inode, places, &mut |command| {
            if let Command::Symlink { target, .. } = command {
                out = Some(target.to_vec());
            }
            Ok(())
        })?;
        out.ok_or_else(|| LookupError::Type("what the path leads to".into(), "symbolic link"))
    }

    /// The command that made an inode.
    fn made_by(
        &self,
        inode: &Inode,
        places: &mut dyn Places,
        each: &mut dyn FnMut(&Command<'_>) -> Result<(), LookupError>,
    ) -> Result<(), LookupError> {
        let (link, id) = inode.nodes[0];
        let Origin::New { at, len, .. } = self.parts[link].model.nodes[id as usize].origin else { return Ok(()) };
        if id == 0 {
            return Ok(());
        }
        let bytes = places.get(link, at, len)?;
        self.each_command(link, &bytes, |command| each(&command))
    }

    fn attrs(&self, inode: &Inode, places: &mut dyn Places) -> Result<Attrs, LookupError> {
        let mut out = Attrs::default();
        for (link, op) in self.ops(inode).into_iter().filter(|(_, op)| op.change == Change::Attrs) {
            let bytes = places.get(link, op.pos, op.len)?;
            self.each_command(link, &bytes, |command| {
                match command {
                    Command::Chmod { mode, .. } => out.mode = Some(mode),
                    Command::Chown { uid, gid, .. } => out.owner = Some((uid, gid)),
                    Command::Utimes { atime, mtime, ctime, .. } => out.times = Some([atime, mtime, ctime]),
                    Command::SetXattr { name, value, .. } => drop(out.xattrs.insert(name.to_vec(), value.to_vec())),
                    Command::RemoveXattr { name, .. } => drop(out.xattrs.remove(name)),
                    // Directories of a host have no such thing.
                    Command::FileAttr { .. } | Command::EnableVerity { .. } => {}
                    other => return Err(wrong("attributes", other.kind().name(), "an attribute").into()),
                }
                Ok(())
            })?;
        }
        Ok(out)
    }

    /// Writes what is at a path, with everything below, as a stream of a subvolume `name`: a directory becomes its root, anything else
    /// is put into it.
    ///
    /// # Errors
    /// There is nothing, it cannot be read, or the stream cannot be written.
    pub fn extract(
        &self,
        path: &[u8],
        name: &[u8],
        places: &mut dyn Places,
        to: &mut dyn Write,
    ) -> Result<Extracted, LookupError> {
        let mut done = Extracted::default();
        let found = self.find(path)?;
        to.write_all(&stream::header(VERSION)).map_err(LookupError::Output)?;
        let mut out = Out { to, bytes: Vec::new() };
        out.command(&Command::Subvol { path: name, uuid: Uuid::nil(), ctransid: 0 })?;
        let mut links = HashMap::new();
        if found.kind == FileType::Dir {
            self.tree(path, found.inode, places, &mut out, &mut links, &mut done)?;
        } else {
            let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
            self.one(&found, name, places, &mut out, &mut links, &mut done)?;
        }
        out.command(&Command::End)?;
        out.to.flush().map_err(LookupError::Output)?;
        Ok(done)
    }

    /// A directory with everything below. Attributes of directories come behind what is in them.
    fn tree(
        &self,
        top: &[u8],
        inode: Inode,
        places: &mut dyn Places,
        out: &mut Out<'_>,
        links: &mut HashMap<(usize, NodeId), Vec<u8>>,
        done: &mut Extracted,
    ) -> Result<(), LookupError> {
        let mut todo = vec![(top.to_vec(), Vec::new(), inode, self.list(top)?.into_iter())];
        while let Some((path, to, inode, rest)) = todo.last_mut() {
            let Some(name) = rest.next() else {
                self.set_attrs(inode, to, places, out)?;
                done.dirs += 1;
                todo.pop();
                continue;
            };
            let (path, to) = (join(path, &name), join(to, &name));
            if path.len() > PATH_LEN_MAX {
                return Err(LookupError::Unsupported(format!("a path is longer than {PATH_LEN_MAX} bytes")));
            }
            let found = self.find(&path)?;
            if found.kind == FileType::Dir {
                out.command(&Command::MkDir { path: &to, ino: 0 })?;
                let names = self.list(&path)?.into_iter();
                todo.push((path, to, found.inode, names));
            } else {
                self.one(&found, &to, places, out, links, done)?;
            }
        }
        Ok(())
    }

    /// Something that is no directory.
    fn one(
        &self,
        found: &Found,
        to: &[u8],
        places: &mut dyn Places,
        out: &mut Out<'_>,
        links: &mut HashMap<(usize, NodeId), Vec<u8>>,
        done: &mut Extracted,
    ) -> Result<(), LookupError> {
        let inode = &found.inode;
        if inode.linked {
            if let Some(target) = links.get(&inode.nodes[0]) {
                return out.command(&Command::Link { path: to, target });
            }
            links.insert(inode.nodes[0], to.to_vec());
        }
        if found.kind == FileType::File {
            out.command(&Command::MkFile { path: to, ino: 0 })?;
            for piece in self.pieces(inode)? {
                done.data_bytes += piece.len;
                self.read_piece(&piece, places, &mut |at, bytes| {
                    let mut at = at;
                    for data in bytes.chunks(WRITE_LEN) {
                        out.command(&Command::Write { path: to, offset: at, data })?;
                        at += data.len() as u64;
                    }
                    Ok(())
                })?;
            }
            out.command(&Command::Truncate { path: to, size: found.size })?;
            done.files += 1;
        } else {
            let mut made = false;
            self.made_by(inode, places, &mut |command| {
                made = true;
                match *command {
                    Command::Symlink { target, .. } => out.command(&Command::Symlink { path: to, ino: 0, target }),
                    Command::MkNod { mode, rdev, .. } => out.command(&Command::MkNod { path: to, ino: 0, mode, rdev }),
                    Command::MkFifo { .. } => out.command(&Command::MkFifo { path: to, ino: 0 }),
                    Command::MkSock { .. } => out.command(&Command::MkSock { path: to, ino: 0 }),
                    _ => Err(wrong("type", command.kind().name(), "what the index says").into()),
                }
            })?;
            if !made {
                return Err(wrong("type", shown(to), "a command that makes it").into());
            }
            done.others += 1;
        }
        self.set_attrs(inode, to, places, out)
    }

    fn set_attrs(
        &self,
        inode: &Inode,
        to: &[u8],
        places: &mut dyn Places,
        out: &mut Out<'_>,
    ) -> Result<(), LookupError> {
        let attrs = self.attrs(inode, places)?;
        if let Some((uid, gid)) = attrs.owner {
            out.command(&Command::Chown { path: to, uid, gid })?;
        }
        for (name, value) in &attrs.xattrs {
            out.command(&Command::SetXattr { path: to, name, value })?;
        }
        if let Some(mode) = attrs.mode {
            out.command(&Command::Chmod { path: to, mode })?;
        }
        if let Some([atime, mtime, ctime]) = attrs.times {
            out.command(&Command::Utimes { path: to, atime, mtime, ctime, otime: None })?;
        }
        Ok(())
    }
}

fn zeros(mut count: u64, to: &mut dyn Write) -> Result<(), LookupError> {
    while count > 0 {
        let some = count.min(ZEROS.len() as u64);
        to.write_all(&ZEROS[..some as usize]).map_err(LookupError::Output)?;
        count -= some;
    }
    Ok(())
}
